#!/usr/bin/env bash
# Installs the project with its docs extra, then builds the site into site/; a broken link is an error.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" docs
exec .venv/bin/mkdocs build --strict "$@"
