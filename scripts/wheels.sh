#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels that are published into build/wheels/dist: strobe for x86-64 and aarch64, drop-ins and backends for every
# machine. Needs Debian on x86-64, nothing else: a Python with a stable ABI, its headers and an aarch64 one to test with
# are unpacked from a newer Debian's packages, beside the system.
# scripts/wheels.sh [x86_64|aarch64...]
# The library is compiled by this Debian's compiler against its C library, whose version is the wheel's manylinux tag:
# on Debian 12 manylinux_2_34, for Ubuntu 22.04, Debian 12, RHEL 9 and later. GPU kernels come from build/cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=("$@")
((${#architectures[@]})) || architectures=(x86_64 aarch64)
for architecture in "${architectures[@]}"; do
  if [[ $architecture != x86_64 && $architecture != aarch64 ]]; then
    echo "usage: scripts/wheels.sh [x86_64|aarch64...]; given: $architecture" >&2
    exit 2
  fi
done
source scripts/wheels/roots.sh

packages=(mmdebstrap)
if [[ " ${architectures[*]} " == *" aarch64 "* ]]; then
  packages+=(g++-aarch64-linux-gnu qemu-user-static libhwy-dev:arm64 libtbb-dev:arm64 libfmt-dev:arm64 libmd-dev:arm64)
fi
scripts/install-dependencies.sh "${packages[@]}"
make_root x86_64 # its Python runs the build
for architecture in "${architectures[@]}"; do make_root "$architecture"; done

tools=$wheels/tools
if ! cmp -s scripts/requirements-wheels.txt "$tools/requirements.txt"; then
  scripts/python-environment.sh
  rm -rf "$tools"
  fetch_packages x86_64 "$tools" --requirement scripts/requirements-wheels.txt
  cp scripts/requirements-wheels.txt "$tools/requirements.txt"
fi
dist=$wheels/dist
mkdir -p "$dist"
rm -f "$dist"/strobe*.whl

export PYTHONPATH=$tools PATH=$tools/bin:$PATH CC=cc CXX=c++ # as the release build names them, for ccache
python=$wheels/root-x86_64/usr/bin/host-python

# build FOLDER DIST [NAME=VALUE...]: the wheel of a Python project, with settings of its build backend.
build() {
  "$python" scripts/wheels/build.py "$@"
}

# compiled ARCHITECTURE [NAME=VALUE...]: the wheel of the library, with its manylinux tag.
compiled() {
  local architecture=$1 raw=$wheels/raw-$1
  rm -rf "$raw"
  build . "$raw" "build-dir=build/wheels/build-$architecture" "cmake.define.STROBE_CUDA_FOLDER=$PWD/build/cuda" \
    "cmake.define.Python_INCLUDE_DIR=$wheels/include-$architecture/$python_name" \
    "cmake.define.CMAKE_CXX_FLAGS=-isystem $wheels/include-$architecture" "${@:2}"
  "$python" -m auditwheel repair --wheel-dir "$dist" "$raw"/strobe-*.whl
}

for architecture in "${architectures[@]}"; do
  if [[ $architecture == x86_64 ]]; then
    compiled x86_64
  else
    # The pack's kernels are the same for every host; strobe-pack of the x86-64 build compiles what is missing.
    [[ -x build/wheels/build-x86_64/bin/strobe-pack ]] || compiled x86_64
    CC='' CXX='' _PYTHON_HOST_PLATFORM=linux-aarch64 compiled aarch64 \
      "cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/cmake/toolchains/aarch64-linux-gnu.cmake" \
      "cmake.define.STROBE_HOST_PACK=$PWD/build/wheels/build-x86_64/bin/strobe-pack"
  fi
done
for package in flash_attn flash_attn_interface sglang_backend vllm_backend; do build "python/$package" "$dist"; done
"$python" -m twine check --strict "$dist"/*.whl
for architecture in "${architectures[@]}"; do scripts/wheels/test.sh "$architecture"; done
ls -l "$dist"
