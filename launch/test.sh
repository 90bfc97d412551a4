#!/usr/bin/env bash
# Style, layout and types, then the test suite; arguments go to pytest. Installs what it needs. As first argument, --all
# adds the exhaustive tests, and runs and sweeps that are killed or whose files are damaged: an hour or more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
bash lint.sh
bash suite.sh "$@"
if [ "${1:-}" = --all ]; then
    cd ..
    XLA_FLAGS="$(.venv/bin/python tests/quickly.py)" .venv/bin/python -m tests.chaos --kills=20
    .venv/bin/python -m tests.fuzz.bit_flips
fi
