#!/bin/sh
# The browser of the tests of pages: print its name, and install it if it is missing.
#
#   browser.sh              print the program's path; exit code 1 if there is none
#   browser.sh --install    have one: Debian's chromium, by apt-get, which takes root
set -u

for name in chromium chromium-browser google-chrome; do
    command -v "$name" && exit
done
if [ "${1:-}" != --install ]; then
    exit 1
fi
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "[+] Chromium for the tests of pages, by apt-get (100 MB)" >&2
    apt-get update --quiet=2 \
        && DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends \
            chromium > /dev/null \
        && exit
fi
echo "tidemark: Browser: found none of chromium, chromium-browser, google-chrome on PATH, need one" \
    "for the tests of pages; install it with your system's packages" >&2
exit 1
