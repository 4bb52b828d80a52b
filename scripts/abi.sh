#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the ABI of libstrobe.so with that of the last release, or of REVISION:
# scripts/abi.sh [REVISION]
# The last release is the latest tag v* before this commit; where no tag is, scripts/abi-base.txt names a commit. Without
# that commit, as in a shallow clone, nothing is compared, which is an error where the variable CI is true.
# Both are built without GPU kernels and for one instruction set, which the ABI does not depend on, into build/abi. What
# is removed or changed while the SONAME stays the same is an error; additions are not (docs/stability.md).
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || sed '/^#/d' scripts/abi-base.txt)}
if ! git cat-file -e "$base^{commit}" 2>/dev/null; then
  echo "there is nothing to compare with: this clone has no commit $base; fetch it, or name another, make abi BASE=..." >&2
  [[ -z ${1-} && ${CI-} != true ]] || exit 1
  exit 0
fi
scripts/install-dependencies.sh abigail-tools

# build NAME SOURCE
build() {
  cmake -G Ninja -S "$2" -B "build/abi/$1" --log-level=NOTICE -DCMAKE_BUILD_TYPE=Debug -DSTROBE_GPU=OFF \
    -DSTROBE_BUILD_TOOLS=OFF -DSTROBE_BUILD_EXAMPLES=OFF -DSTROBE_BUILD_TESTS=OFF -DCMAKE_UNITY_BUILD=ON \
    -DCMAKE_PROJECT_TOP_LEVEL_INCLUDES="$PWD/cmake/ccache.cmake" \
    -DCMAKE_CXX_FLAGS="-O0 -march=native -DHWY_COMPILE_ONLY_STATIC"
  cmake --build "build/abi/$1" --target strobe
}
source=build/abi/source
rm -rf "$source"
mkdir -p "$source"
# --touch: with the commit's time, files would be older than what was built of another base, which would stay.
git archive "$base" | tar --extract --touch --directory "$source"
build base "$source"
build head .

soname() { readelf --dynamic "$1" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p'; }
before=build/abi/base/lib/libstrobe.so after=build/abi/head/lib/libstrobe.so
code=0
abidiff --no-added-syms --drop-private-types --suppressions scripts/abi-suppressions.ini \
  --headers-dir1 "$source/include/strobe" --headers-dir2 include/strobe "$before" "$after" || code=$?
if ((code & 3)); then
  exit "$code" # abidiff itself failed
elif ((code == 0)); then
  echo "the ABI is that of $base, or more"
elif [[ $(soname "$before") != $(soname "$after") ]]; then
  echo "the ABI differs from that of $base, and the SONAME says so: $(soname "$before"), now $(soname "$after")"
else
  echo "the ABI differs from that of $base under the same SONAME, $(soname "$after")" >&2
  exit 1
fi
