# Sourced by the other scripts: goes to the project's root and makes .venv with the project in it, once per pyproject.toml.
# $1: the extra to install ("" for none). PYTHON names the interpreter, at least 3.11, where python3 is not it.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ ! -x .venv/bin/pip ]; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "error: Python >= 3.11 is needed, $("${PYTHON:-python3}" --version 2>&1) was found; set PYTHON" >&2
        exit 2
    }
    "${PYTHON:-python3}" -m venv --clear .venv
fi
installed=".venv/installed${1:+-$1}"
if [ ! "$installed" -nt pyproject.toml ]; then
    echo "installing mlm${1:+[$1]} into .venv"
    # uv fetches and unpacks packages side by side, pip one after the other. Where uv reaches none (it reads no
    # settings of pip), pip does. --use-pep517: pip before 23.1 runs an old setup.py (seqeval) without what that needs.
    # --no-compile: Python compiles what it imports, 2,000 of 14,000 files.
    pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --use-pep517)
    { "${pip[@]}" uv && .venv/bin/uv pip install --quiet --python .venv/bin/python --editable ".${1:+[$1]}"; } ||
        "${pip[@]}" --editable ".${1:+[$1]}"
    touch "$installed"
fi
