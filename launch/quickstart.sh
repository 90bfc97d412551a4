#!/usr/bin/env bash
# From nothing to the first table: installs the project, trains three families on the documentation of this Python's
# standard library, prints the comparison. A second call skips what is done. About five minutes on two CPU cores.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" ""
exec .venv/bin/python -m launch.sweep run experiments/architectures.py --scale=quick "$@"
