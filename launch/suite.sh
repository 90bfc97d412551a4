#!/usr/bin/env bash
# Installs the project with its test extra, then runs the test suite; arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" test
exec .venv/bin/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder "$@"
