#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the wheel strobe-kernels, packs of kernels for the GPUs that are named, as `strobe compile --device` names them,
# then installs it beside Strobe's wheel and checks that the library finds each pack and that it answers the calls:
# scripts/kernels-wheel.sh DEVICE... [-- CALLS...]
# CALLS are flags of `strobe compile`, such as --config FILE for one model's; without them the packs hold every combination
# of common options. What a run has compiled is kept: one that was stopped goes on where it was.
set -euo pipefail
devices=() calls=()
while (($# > 0)) && [[ $1 != -- ]]; do
  devices+=("$1")
  shift
done
(($# < 2)) || calls=("${@:2}")
((${#calls[@]})) || calls=(--combinations)
if ((${#devices[@]} == 0)); then
  echo "usage: scripts/kernels-wheel.sh DEVICE... [-- CALLS...]" >&2
  exit 2
fi
cd "$(dirname "$0")/.."
scripts/python-environment.sh wheels

package=build/kernels/package
rm -rf "$package"
mkdir -p build/kernels
cp -R python/kernels "$package"
# NVRTC of CUDA 12, as for the library's own pack: drivers of CUDA 12 load its code, and later ones.
nvrtc=$(compgen -G "build/cuda/nvidia/cuda_nvrtc/lib/libnvrtc.so.12" || true)
for device in "${devices[@]}"; do
  STROBE_CACHE_DIR=build/kernels/cache STROBE_NVRTC=${STROBE_NVRTC-$nvrtc} build/release/bin/strobe compile \
    "${calls[@]}" --device "$device" --driver 12.9 --pack "$package/strobe_kernels/$device.archive"
done
pip=(.venv/bin/pip --quiet --disable-pip-version-check)
wheel=("${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir)
rm -f build/kernels/*.whl
"${wheel[@]}" build/kernels "$package"
.venv/bin/twine check --strict build/kernels/*.whl

environment=build/kernels/environment
rm -rf "$environment" build/kernels/strobe
# The compiler by the release build's name for it, without which ccache compiles everything again.
CC=${CC:-cc} CXX=${CXX:-c++} "${wheel[@]}" build/kernels/strobe .
/usr/bin/python3 -m venv "$environment"
numpy=$(grep '^numpy==' scripts/requirements-python.txt)
"$environment/bin/pip" --quiet --disable-pip-version-check install "$numpy" build/kernels/strobe/*.whl build/kernels/*.whl
"$environment/bin/pip" check --disable-pip-version-check
"$environment/bin/python" tests/python/installed_kernels.py "${devices[@]}"
# An empty cache and no compiler: a kernel that the packs lack, which the installed program finds beside it, is an error.
mkdir "$environment/cache"
for device in "${devices[@]}"; do
  STROBE_CACHE_DIR=$environment/cache STROBE_NVRTC=/nonexistent \
    "$environment/bin/strobe" compile "${calls[@]}" --device "$device" --driver 12.9
done
ls -l build/kernels/*.whl
