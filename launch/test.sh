#!/usr/bin/env bash
# Style, layout and types beside the test suite; arguments go to pytest. --all adds the exhaustive tests: an hour or more.
# Installs what it needs. Fails where either does.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" test
nice bash launch/lint.sh &  # a minute of one core, of what two processes of tests leave
failed=0
bash launch/suite.sh "$@" || failed=$?
wait $! || { failed=$?; echo "error: launch/lint.sh failed: see above" >&2; }
exit "$failed"
