#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a wheel of build/wheels/dist with NumPy alone, by its tags, into a system that has Python and no compiler, and
# calls it there: for x86_64 in a chroot, for aarch64 under qemu-user. Then it installs the wheels of drop-ins and backends
# beside it, without what they import, and checks them by their files:
# scripts/wheels/test.sh x86_64|aarch64
# On x86-64 the drop-ins' wheels are also called where PyTorch is, in build/python-environment, if make test made it.
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
run_there() {
  cp tests/python/"$1" "$root/test"
  env --ignore-environment OPENBLAS_NUM_THREADS=1 PYTHONPATH="$test" "${run[@]}" "$test/$1"
}
run_there numpy_only.py

companions=("$wheels"/dist/strobe_*-py3-none-any.whl)
fetch_packages "$architecture" "$root/test" --no-deps "${companions[@]}"
cp tests/python/companions.py "$root/test"
run_there installed_companions.py

environment=build/python-environment
if [[ $architecture == x86_64 && -x $environment/bin/python ]]; then
  drop_ins=$wheels/drop-ins
  rm -rf "$drop_ins"
  fetch_packages "$architecture" "$drop_ins" --no-deps "$wheels"/dist/strobe_flash_attn*.whl
  PYTHONPATH=$drop_ins "$environment/bin/python" tests/python/installed_drop_ins.py "$drop_ins"
elif [[ $architecture == x86_64 ]]; then
  echo "the drop-ins' wheels were not called: $environment, which has PyTorch, is not there"
fi
