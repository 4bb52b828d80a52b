#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation site into build/docs. Warnings are errors: a dead link or anchor, a page that is missing from
# the navigation of mkdocs.yml, a formula that TeX rejects, a plot that differs from its measurements.
set -euo pipefail
cd "$(dirname "$0")/../.."

scripts/python-environment.sh docs
.venv/bin/python scripts/docs/plots.py --check

# Not --quiet: it hides the warnings from --strict as well, which then passes. What MkDocs says on the way is shown only
# when something is wrong.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict >"$log" 2>&1; then
  grep -vE '^INFO +-' "$log" >&2
  exit 1
fi
echo "build/docs/index.html"
