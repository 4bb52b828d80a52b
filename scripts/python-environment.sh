#!/usr/bin/env bash
# Brings the project's own .venv up to date with scripts/requirements-NAME.txt for each NAME given.
# A set is installed once and again only when its file has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debian's python3, since that is the one python3-venv belongs to.
[[ -x .venv/bin/pip ]] || /usr/bin/python3 -m venv .venv

for name in "$@"; do
  requirements=scripts/requirements-$name.txt
  stamp=.venv/requirements-$name.txt
  if ! cmp -s "$requirements" "$stamp"; then
    echo "installing $requirements"
    .venv/bin/pip install --quiet --disable-pip-version-check --requirement "$requirements"
    cp "$requirements" "$stamp"
  fi
done
