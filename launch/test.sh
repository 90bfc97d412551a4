#!/usr/bin/env bash
# Style, layout and types, then the test suite; arguments go to pytest. --all adds the exhaustive tests: an hour or more.
# Installs what it needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
bash lint.sh
exec bash suite.sh "$@"
