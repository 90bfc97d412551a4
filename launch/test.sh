#!/usr/bin/env bash
# Installs the project with its test extra, then lints it and runs the whole test suite.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" test
.venv/bin/ruff check .
exec .venv/bin/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder "$@"
