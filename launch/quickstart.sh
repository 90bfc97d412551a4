#!/usr/bin/env bash
# From nothing to the first table, figures and report: installs the project, trains four models on the built-in
# language, two at a time, says how far each is from the best possible, and where its report is. A second call skips what
# is done.
# Five to seven minutes on two CPU cores. Arguments go to mlm sweep run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" report
exec .venv/bin/python -m mlm sweep run experiments/architectures.py --scale=quick --workers=2 "$@"
