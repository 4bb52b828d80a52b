#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the wheel strobe-kernels: packs of every combination of common options for the GPUs that are named, as
# `strobe compile --device` names them:
# scripts/kernels-wheel.sh DEVICE...
# What a run has compiled is kept: one that was stopped goes on where it was.
set -euo pipefail
if (($# < 1)); then
  echo "usage: scripts/kernels-wheel.sh DEVICE..." >&2
  exit 2
fi
cd "$(dirname "$0")/.."
scripts/python-environment.sh python

package=build/kernels/package
rm -rf "$package"
mkdir -p build/kernels
cp -R python/kernels "$package"
# NVRTC of CUDA 12, as for the library's own pack: drivers of CUDA 12 load its code, and later ones.
nvrtc=$(compgen -G "build/cuda/nvidia/cuda_nvrtc/lib/libnvrtc.so.12" || true)
for device in "$@"; do
  STROBE_CACHE_DIR=build/kernels/cache STROBE_NVRTC=${STROBE_NVRTC-$nvrtc} build/release/bin/strobe compile \
    --combinations --device "$device" --driver 12.9 --pack "$package/strobe_kernels/$device.archive"
done
.venv/bin/pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir build/kernels "$package"
ls -l build/kernels/*.whl
