#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels of Strobe and its drop-ins as `pip install .` does and installs them into the virtual environment
# FOLDER, with what their tests need:
# scripts/install-wheel.sh FOLDER [-DNAME=VALUE...]
# The definitions are CMake's. Build folders are kept, so that a second build compiles what has changed.
set -euo pipefail
if (($# < 1)); then
  echo "usage: scripts/install-wheel.sh FOLDER [-DNAME=VALUE...]" >&2
  exit 2
fi
mkdir -p "$1"
environment=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
ENVIRONMENT=$environment scripts/python-environment.sh python

settings=()
for definition in "${@:2}"; do
  settings+=("--config-settings=cmake.define.${definition#-D}")
done
# The compiler by the release build's name for it, without which ccache compiles everything again.
export CC=${CC:-cc} CXX=${CXX:-c++}
wheels=$environment/wheels
rm -rf "$wheels"
pip=("$environment/bin/pip" --quiet --disable-pip-version-check)
# --no-build-isolation: what a wheel is built with is installed already, and in a place that stays.
build=("${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$wheels")
"${build[@]}" "${settings[@]}" .
# The tag of the systems that it runs on, manylinux_2_X; fails where it needs a library that it neither holds nor may
# expect there.
PATH=$environment/bin:$PATH auditwheel repair --wheel-dir "$wheels/repaired" "$wheels"/strobe-*.whl
rm "$wheels"/strobe-*.whl
mv "$wheels"/repaired/*.whl "$wheels"
rmdir "$wheels/repaired"
"${build[@]}" python/flash_attn python/flash_attn_interface
"${pip[@]}" install --no-deps --force-reinstall "$wheels"/*.whl
