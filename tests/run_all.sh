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

# $1 environment, then what to run. Three processes on two cores: most tests wait for processes of their own.
tests() {
    environment=$1
    shift
    "$environment/bin/python" -m pytest -n 3 --dist loadfile "$@"
}

echo "== tests: Python $main_version, newest dependencies"
tests .venv-test tests
note "Python $main_version, newest dependencies: passed"

oldest=$(find_python 3.10)
if [ -n "$oldest" ]; then
    echo "== tests: Python 3.10, oldest dependencies"
    env_for .venv-oldest "$oldest" '.[test]' 'wrapt==1.14.*' 'opentelemetry-instrumentation==0.63b0' \
        'opentelemetry-sdk==1.42.0' 'opentelemetry-exporter-otlp==1.42.0'
    tests .venv-oldest tests
    note "Python 3.10, oldest dependencies: passed"
else
    note "Python 3.10, oldest dependencies: NOT RUN, there is no Python 3.10 here"
fi

for version in 3.11 3.12 3.13 3.14; do
    [ "$version" != "$main_version" ] || continue
    interpreter=$(find_python "$version")
    if [ -n "$interpreter" ]; then
        echo "== tests: Python $version, newest dependencies: the engine and the whole chain"
        env_for ".venv-$version" "$interpreter" '.[test]'
        tests ".venv-$version" tests/unit tests/trees tests/test_end_to_end.py
        note "Python $version, newest dependencies: passed"
    else
        note "Python $version: NOT RUN, it is not installed here"
    fi
done

# Beside OpenTelemetry's own instrumentation of the HTTP clients, which would be on in every other test.
if env_for .venv-http "$PYTHON" '.[test]' opentelemetry-instrumentation-aiohttp-client \
    opentelemetry-instrumentation-httpx opentelemetry-instrumentation-requests; then
    echo "== tests: HTTP clients with OpenTelemetry's instrumentation"
    .venv-http/bin/python -m pytest tests/unit/test_arguments.py
    note "HTTP clients with OpenTelemetry's instrumentation: passed"
else
    note "HTTP clients with OpenTelemetry's instrumentation: NOT RUN, it can't be installed here"
fi

# torch.compile, and real TRL: where pip finds torch on this machine. CI does not fetch gigabytes for it. What they need is
# installed while Ray's tests run, which wait more than they work.
torch="torch==2.13.0"
torch_python=${TORCH_PYTHON:-$(find_python 3.11)}
torch_from=""
if [ -n "$torch_python" ]; then
    torch_from=$("$torch_python" -m pip install --dry-run --no-deps --quiet --report - "$torch" 2>/dev/null |
        "$torch_python" -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["download_info"]["url"])' \
            2>/dev/null) || torch_from=""
fi
install_trl() { # torch first, so that nothing that needs it takes another one
    echo "$torch" >.venv-trl/constraints.txt
    pip=".venv-trl/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-trl/constraints.txt"
    $pip "$torch" && $pip trl transformers accelerate datasets peft
}
trl_installs=""
case $torch_from in
file:*)
    if UV="" env_for .venv-trl "$torch_python" '.[test]'; then # UV looks for wheels elsewhere
        install_trl &
        trl_installs=$!
    fi
    ;;
esac

# Real Ray, for which no extra exists and not every Python has a wheel. The newest release; ALL_RAY=1 adds the oldest
# that is supported and one between.
ray_python=$(find_python 3.11)
[ -n "$ray_python" ] || ray_python=$(find_python 3.12)
for release in newest ${ALL_RAY:+2.49 2.55}; do
    requirement="ray==$release.*"
    [ "$release" != newest ] || requirement="ray>=2.56"
    if [ -z "$ray_python" ]; then
        note "Ray $release: NOT RUN, there is no Python 3.11 or 3.12 here"
    elif env_for ".venv-ray-$release" "$ray_python" '.[test]' "$requirement"; then
        echo "== tests: Ray $release, Python $(version_of "$ray_python")"
        ".venv-ray-$release/bin/python" -m pytest tests/real/test_ray.py tests/real/test_ray_bundle.py
        note "Ray $release, Python $(version_of "$ray_python"): passed"
    else
        note "Ray $release: NOT RUN, it can't be installed here"
    fi
done

case $torch_from in
file:*)
    if [ -n "$trl_installs" ] && wait "$trl_installs"; then
        echo "== tests: torch.compile and TRL, Python $(version_of "$torch_python")"
        .venv-trl/bin/python -m pytest tests/unit/test_torch_compile.py tests/real/test_trl.py \
            tests/test_processes.py::test_torchrun_with_gloo_and_a_data_loader
        note "torch.compile, TRL $(.venv-trl/bin/python -c 'from importlib.metadata import version as v; print(v("trl"))'), \
Python $(version_of "$torch_python"): passed"
    else
        note "torch.compile, TRL: NOT RUN, it can't be installed here"
    fi
    ;;
*) note "torch.compile, TRL: NOT RUN, $torch is no file on this machine, and CI does not download it" ;;
esac

echo "== summary$summary"
