# `make bench`: every part in its environment, then one table, and .bench/results.json beside it.
# A rival that can't be installed is said loudly, and its row says why. BENCH_ROUNDS=N makes it shorter.
set -eu
cd "$(dirname "$0")/../.."
: "${PYTHON:=python3}"
out=.bench
rounds=${BENCH_ROUNDS:+--rounds $BENCH_ROUNDS}
rm -rf "$out"
mkdir -p "$out"

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# An interpreter of a version: python3.X on the path, or one that pyenv keeps.
find_python() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1"*/bin/python; do
        if path=$(command -v "$candidate" 2>/dev/null) && [ "$(version_of "$path")" = "$1" ]; then
            echo "$path"
            return
        fi
    done
}

environment() { # FOLDER PYTHON REQUIREMENT...
    folder=$1
    interpreter=$2
    shift 2
    PYTHON="$interpreter" UV="${UV:-}" sh tests/environment.sh "$folder" "$@"
}

missing() { # RIVAL REASON
    echo "!! $1 is NOT MEASURED: $2" >&2
    printf '%s\t%s\n' "$1" "$2" >>"$out/missing.tsv"
}

echo "== environments" >&2
environment .venv-bench "$PYTHON" '.[demo]' # numpy, for the stand-in's logger
if [ -z "${UV:-}" ] && .venv-bench/bin/python -m pip install --quiet --disable-pip-version-check uv; then
    UV=$PWD/.venv-bench/bin/uv # pip takes many minutes over the rivals' dependencies
fi
# The same packages without autoinstr (a process's start reads what is installed): with the stock distro, and with none.
plain='opentelemetry-instrumentation opentelemetry-sdk opentelemetry-exporter-otlp pyyaml wrapt numpy tqdm'
for stock in distro bare; do
    folder=.venv-bench-$stock
    extra=
    [ $stock = bare ] || extra=opentelemetry-distro
    [ -x $folder/bin/python ] || "$PYTHON" -m venv --without-pip $folder
    if [ -n "${UV:-}" ]; then
        # shellcheck disable=SC2086
        "$UV" pip install --quiet --python $folder/bin/python $plain $extra
    else
        # shellcheck disable=SC2086
        .venv-bench/bin/python -m pip --python $folder/bin/python install --quiet $plain $extra
    fi
done

echo "== spans" >&2
# shellcheck disable=SC2086
.venv-bench/bin/python tests/bench/spans.py $rounds --json "$out/1-spans.json"

echo "== metrics" >&2
# shellcheck disable=SC2086
.venv-bench/bin/python tests/bench/metrics.py $rounds --json "$out/2-metrics.json"

echo "== logs" >&2
# shellcheck disable=SC2086
.venv-bench/bin/python tests/bench/logs.py $rounds --json "$out/3-logs.json"

number=4
rival() { # NAME FOLDER PYTHON REQUIREMENT...
    name=$1
    folder=$2
    interpreter=$3
    shift 3
    echo "== $name" >&2
    if [ -z "$interpreter" ]; then
        missing "$name" "not installed: it needs Python 3.13, which is not here"
    elif ! environment "$folder" "$interpreter" . "$@" 2>"$out/error.txt"; then
        missing "$name" "not installed: $(tail -n 1 "$out/error.txt")"
    # shellcheck disable=SC2086
    elif ! "$folder/bin/python" tests/bench/rivals.py "$name" $rounds --json "$out/$number-$name.json"; then
        missing "$name" "its bench failed, see above"
    fi
    number=$((number + 1))
}
newer=$PYTHON
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 13))' || newer=$(find_python 3.13)
rival nemo-lens .venv-bench-nemo "$newer" nemo-lens
rival ddtrace .venv-bench-rivals "$PYTHON" ddtrace
rival logfire .venv-bench-rivals "$PYTHON" logfire
rival traceloop-sdk .venv-bench-rivals "$PYTHON" traceloop-sdk httpx # it imports httpx and does not say so

echo "== start-up" >&2
.venv-bench/bin/python tests/bench/startup.py .venv-bench .venv-bench-distro .venv-bench-bare \
    ${BENCH_STARTS:+--rounds $BENCH_STARTS} --json "$out/9-startup.json"

echo >&2
.venv-bench/bin/python tests/bench/report.py "$out"
