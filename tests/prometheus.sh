#!/bin/sh
# Prometheus and promtool for the tests of metrics: print their folder, and install them if they
# are missing.
#
#   prometheus.sh              print the folder of both programs; exit code 1 if there is none
#   prometheus.sh --install    have one: Debian's package, unpacked into .tidemark/prometheus
#
# The package is only unpacked: an installation would start a service.
set -u

here=$(cd "$(dirname "$0")/.." && pwd)/.tidemark/prometheus
for folder in "$here/usr/bin" "$(dirname "$(command -v promtool || echo /none)")"; do
    if [ -x "$folder/promtool" ] && [ -x "$folder/prometheus" ]; then
        echo "$folder"
        exit
    fi
done
if [ "${1:-}" != --install ]; then
    exit 1
fi
if command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null; then
    echo "[+] Prometheus for the tests of metrics, by apt-get (20 MB)" >&2
    mkdir -p "$here" && cd "$here" || exit
    # Root alone may update the list of packages. The list may be new enough without an update.
    [ "$(id -u)" != 0 ] || apt-get update --quiet=2
    apt-get download --quiet=2 prometheus 2> download.log \
        && dpkg-deb --fsys-tarfile prometheus_*.deb \
            | tar --extract ./usr/bin/prometheus ./usr/bin/promtool \
        && rm -f prometheus_*.deb download.log \
        && echo "$here/usr/bin" \
        && exit
    cat download.log >&2
fi
echo "tidemark: Prometheus: found no promtool and prometheus on PATH, need both for the tests of" \
    "metrics; install them with your system's packages" >&2
exit 1
