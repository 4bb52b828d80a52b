#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything with a compiler of Debian's or Ubuntu's, warnings as errors, and runs the tests that depend on the
# compiler: all but those of the Python package, of packages and of the pages' links.
# scripts/test-compiler.sh g++-14|clang++-19 [JOBS]
# GPU kernels are NVRTC's, whatever the compiler, so they are not built.
set -euo pipefail
if [[ ! ${1-} =~ ^(g\+\+|clang\+\+)-[0-9]+$ ]]; then
  echo "usage: scripts/test-compiler.sh g++-NUMBER|clang++-NUMBER [JOBS]; given: ${1-nothing}" >&2
  exit 2
fi
cd "$(dirname "$0")/.."
cxx=$1 jobs=${2:-$(nproc)}
case $cxx in
  g++*) package=$cxx c=gcc${cxx#g++} ;;
  *) package=clang${cxx#clang++} c=clang${cxx#clang++} ;;
esac
scripts/install-dependencies.sh "$package"
build=build/compilers/$cxx
cmake --preset release -B "$build" --log-level=NOTICE -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_COMPILER="$c" \
  -DCMAKE_COMPILE_WARNING_AS_ERROR=ON -DSTROBE_GPU=OFF
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$jobs" --exclude-regex '^(python|package|docs|lint)\.'
