#!/usr/bin/env bash
# Installs the project with its test extra, then checks style, layout and types.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" test
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright --pythonpath .venv/bin/python
