#!/usr/bin/env bash
# Installs the project with its test extra, then runs the test suite; arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" test
unset PYTHONDONTWRITEBYTECODE  # else each process compiles all that it imports, in each run again
.venv/bin/python -m compileall -q mlm
exec .venv/bin/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder "$@"
