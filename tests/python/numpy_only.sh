#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the wheel of Strobe in WHEELS into an environment of its own, FOLDER, with what it depends on and nothing
# else, and runs numpy_only.py and the program there: numpy_only.sh WHEELS FOLDER
set -euo pipefail
wheel=("$1"/strobe-*-manylinux_*.whl)
folder=$2
numpy=$(grep '^numpy==' "$(dirname "$0")/../../scripts/requirements-python.txt")
[[ -x $folder/bin/pip ]] || /usr/bin/python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check "$numpy"
"$folder/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "${wheel[0]}"
"$folder/bin/pip" check --disable-pip-version-check
"$folder/bin/python" "$(dirname "$0")/numpy_only.py"
"$folder/bin/strobe" --version
(cd "$folder" && bin/python -m strobe verify --seqlen 64 --heads 2 --head-dim 32)
