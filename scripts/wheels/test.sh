#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a wheel of build/wheels/dist with NumPy alone into an empty folder, by its tags, and calls it from a Python
# in whose system there is no compiler; that of aarch64 runs under qemu-user:
# scripts/wheels/test.sh x86_64|aarch64
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/wheels/roots.sh
architecture=$1
root=$wheels/root-$architecture installed=$wheels/installed-$architecture
rm -rf "$installed"
numpy=$(grep '^numpy==' scripts/requirements-python.txt)
# --find-links: what the index has of the same name is another build.
fetch_packages "$architecture" "$installed" --find-links "$wheels/dist" "$numpy" "strobe==$(python3 -c '
import sys; sys.path.insert(0, "scripts")
import project; print(project.version())')"
if [[ $architecture == x86_64 ]]; then
  run=("$root/usr/bin/host-python")
else
  run=(env OPENBLAS_NUM_THREADS=1 qemu-aarch64-static -L "$root" "$root/usr/bin/$python_name")
fi
env --ignore-environment PATH=/nonexistent PYTHONPATH="$installed" /usr/bin/env "${run[@]}" tests/python/numpy_only.py
