# sh tests/environment.sh FOLDER REQUIREMENT...
# Makes or refreshes a virtual environment with this checkout (editable) and more in it: by uv where it is
# installed, by venv and pip where not. $PYTHON is the interpreter.
set -eu
folder=$1
shift
: "${PYTHON:=python3}"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "autoinstr needs Python 3.10 or newer; $PYTHON is $("$PYTHON" --version 2>&1). Set PYTHON=." >&2
    exit 1
}
if [ -n "${UV:-}" ]; then
    [ -x "$folder/bin/python" ] || "$UV" venv --quiet --python "$PYTHON" "$folder"
    first=$1
    shift
    "$UV" pip install --quiet --python "$folder/bin/python" --editable "$first" "$@"
else
    [ -x "$folder/bin/python" ] || "$PYTHON" -m venv "$folder"
    first=$1
    shift
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$first" "$@"
fi
