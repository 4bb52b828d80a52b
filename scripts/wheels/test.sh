#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a wheel of build/wheels/dist with NumPy alone, by its tags, into a system that has Python and no compiler, and
# calls it there: for x86_64 in a chroot, for aarch64 under qemu-user:
# scripts/wheels/test.sh x86_64|aarch64
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/wheels/roots.sh
architecture=$1
root=$wheels/root-$architecture
rm -rf "$root/test"
numpy=$(grep '^numpy==' scripts/requirements-python.txt)
# --find-links: what the index has of the same name is another build.
fetch_packages "$architecture" "$root/test" --find-links "$wheels/dist" "$numpy" "strobe==$(python3 -c '
import sys; sys.path.insert(0, "scripts")
import project; print(project.version())')"
# What runs under qemu-user is not the system's own loader, so it sees the root as a prefix and not by chroot.
if [[ $architecture == x86_64 ]]; then
  run=(/usr/sbin/chroot "$root" "/usr/bin/$python_name")
  ((EUID == 0)) || run=(/usr/bin/unshare --map-root-user --root="$root" "/usr/bin/$python_name")
  test=/test
else
  run=(/usr/bin/qemu-aarch64-static -L "$root" "$root/usr/bin/$python_name")
  test=$root/test
fi
cp tests/python/numpy_only.py "$root/test"
env --ignore-environment OPENBLAS_NUM_THREADS=1 PYTHONPATH="$test" "${run[@]}" "$test/numpy_only.py"
