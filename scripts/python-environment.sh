#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings a virtual environment up to date with scripts/requirements-NAME.txt for each NAME given. The environment is the
# project's own .venv, or the folder that the variable ENVIRONMENT names.
# A set is installed once and again only when its file has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=${ENVIRONMENT:-.venv}

# Debian's python3, since that is the one python3-venv belongs to.
[[ -x $environment/bin/pip ]] || /usr/bin/python3 -m venv "$environment"

for name in "$@"; do
  requirements=scripts/requirements-$name.txt
  stamp=$environment/requirements-$name.txt
  if ! cmp -s "$requirements" "$stamp"; then
    echo "installing $requirements"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements"
    cp "$requirements" "$stamp"
  fi
done
