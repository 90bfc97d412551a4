#!/usr/bin/env bash
# Style, layout and types, then the whole test suite; arguments go to pytest. Installs what it needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
bash lint.sh
exec bash suite.sh "$@"
