#!/usr/bin/env bash
# Builds the documentation site into build/docs; a warning, a dead link or a plot that is not its measurements' fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

scripts/python-environment.sh docs
.venv/bin/python scripts/docs/plots.py --check
NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
echo "build/docs/index.html"
