# Everything that must hold, in one go: lint, types, the unit tests with the newest dependencies on this
# Python, with the oldest on the oldest Python that is here, and on every other supported Python.
# What can't run here is said loudly, and is no failure. LINT_ONLY=1 stops after lint and types.
set -eu
cd "$(dirname "$0")/.."
: "${PYTHON:=python3}"
summary=""
note() { summary="$summary
  $1"; }

# Editable installs of one checkout must not be made side by side: one environment after the other.
env_for() { # FOLDER PYTHON REQUIREMENT...
    folder=$1
    interpreter=$2
    shift 2
    PYTHON="$interpreter" UV="${UV:-}" sh tests/environment.sh "$folder" "$@"
}

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

main_version=$(version_of "$PYTHON")
echo "== environment: Python $main_version, newest dependencies"
env_for .venv-test "$PYTHON" '.[test]' 'mypy>=1.13' 'ruff>=0.9' types-PyYAML
bin=.venv-test/bin

echo "== lint and types"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
note "lint and types: passed"
[ -z "${LINT_ONLY:-}" ] || exit 0

echo "== tests: Python $main_version, newest dependencies"
"$bin/python" -m pytest tests
note "Python $main_version, newest dependencies: passed"

oldest=$(find_python 3.10)
if [ -n "$oldest" ]; then
    echo "== tests: Python 3.10, oldest dependencies"
    env_for .venv-oldest "$oldest" '.[test]' 'wrapt==1.14.*' 'opentelemetry-instrumentation==0.63b0' \
        'opentelemetry-sdk==1.42.0' 'opentelemetry-exporter-otlp==1.42.0'
    .venv-oldest/bin/python -m pytest tests
    note "Python 3.10, oldest dependencies: passed"
else
    note "Python 3.10, oldest dependencies: NOT RUN, there is no Python 3.10 here"
fi

for version in 3.11 3.12 3.13 3.14; do
    [ "$version" != "$main_version" ] || continue
    interpreter=$(find_python "$version")
    if [ -n "$interpreter" ]; then
        echo "== tests: Python $version, newest dependencies"
        env_for ".venv-$version" "$interpreter" '.[test]'
        ".venv-$version/bin/python" -m pytest tests
        note "Python $version, newest dependencies: passed"
    else
        note "Python $version: NOT RUN, it is not installed here"
    fi
done

echo "== summary$summary"
