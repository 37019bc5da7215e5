#!/bin/sh
# Check the requirements of this machine before the set-up. Print one line for each missing
# requirement, with the found version, the required one and the fix.
#
#   preflight.sh FREE_GB [KAFKA_PORT PORT]    check, with the ports of `make up`
#
# The exit code is 1 if a requirement is missing.
#
#   preflight.sh --python   print the path of the Python 3.11 for the virtual environment
set -u

failed=0
problem() {
    echo "tidemark: $*" >&2
    failed=1
}

# The virtual environment must not be created by its own Python.
PATH=$(printf '%s' "$PATH" | sed "s#$(pwd)/\.venv/bin:##g")

# Run each candidate: launchers of version managers are on PATH and may fail.
python=""
found_python="none on PATH"
for candidate in python3.11 python3; do
    version=$("$candidate" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) \
        || continue
    case $version in
        3.11.*)
            python=$candidate
            break
            ;;
    esac
    found_python="$version ($(command -v "$candidate"))"
done
if [ "${1:-}" = --python ]; then
    [ -n "$python" ] && command -v "$python"
    exit
fi
if [ -z "$python" ]; then
    problem "Python: found $found_python, need 3.11;" \
        "install Python 3.11 so that python3.11 is on PATH"
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    problem "Python: $version ($(command -v "$python")) lacks the modules venv and ensurepip;" \
        "install the package python3.11-venv"
fi

# Spark, Ivy and the broker prefer JAVA_HOME to PATH.
if [ -n "${JAVA_HOME:-}" ]; then
    java=$JAVA_HOME/bin/java
    java_place="JAVA_HOME=$JAVA_HOME"
else
    java=$(command -v java) || java=""
    java_place=${java:-none on PATH}
fi
if [ -z "$java" ]; then
    found_java=$java_place
elif [ ! -x "$java" ]; then
    found_java="no bin/java in $java_place"
else
    # `openjdk version "17.0.15"`; Java 8 prints "1.8.0_402".
    java_version=$("$java" -version 2>&1 | sed -n 's/^.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p')
    found_java="${java_version:-a java without a version} ($java_place)"
fi
case $found_java in
    "17 ("*) ;;
    *)
        problem "Java: found $found_java, need 17;" \
            "install a Java 17 runtime and put it on PATH, or set JAVA_HOME to it"
        ;;
esac

free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
if [ "$free_kb" -lt $((${1:-0} * 1024 * 1024)) ]; then
    problem "Disk: found $((free_kb / 1024)) MB free in $(pwd), need ${1}000 MB;" \
        "free some space, or clone to a larger disk"
fi

# Check a port: its variable of make, its number, its server, and the file that the server's start
# writes. After a first start, the port may be in use by the server itself; `tidemark up` then
# checks it.
check_port() {
    case $2 in
        *[!0-9]*) return ;; # `tidemark up` refuses it
    esac
    [ "$2" = 0 ] || [ -e "${TIDEMARK_HOME:-.tidemark}/$4" ] || [ -z "$python" ] && return
    "$python" - "$2" 2>/dev/null <<'EOF' && return
import socket
import sys

with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", int(sys.argv[1])))
EOF
    problem "Port: found $2 in use, need a free port for $3;" \
        "stop the process that listens on it, or choose another port: make up $1=N"
}
if [ $# -eq 3 ]; then
    check_port KAFKA_PORT "$2" "the embedded broker" broker/broker.json
    check_port PORT "$3" "Airflow's web UI" airflow/standalone.json
fi
exit $failed
