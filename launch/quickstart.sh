#!/usr/bin/env bash
# From nothing to the first table and figures: installs the project, trains four models on the built-in language, says
# how far each is from the best possible. A second call skips what is done. Under ten minutes on two CPU cores.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" ""
exec .venv/bin/python -m launch.sweep run experiments/architectures.py --scale=quick "$@"
