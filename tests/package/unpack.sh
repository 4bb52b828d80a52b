#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the packages of BUILD_FOLDER and unpacks them into FOLDER/deb and FOLDER/tar: unpack.sh CPACK BUILD_FOLDER FOLDER
set -euo pipefail
cpack=$1 build=$2 folder=$3
rm -rf "$folder"
mkdir -p "$folder"/{packages,deb,tar}
"$cpack" --config "$build/CPackConfig.cmake" -B "$folder/packages"
deb=("$folder"/packages/*.deb)
dpkg-deb --extract "${deb[0]}" "$folder/deb"
tar --extract --gzip --strip-components=1 --directory "$folder/tar" --file "$folder"/packages/*.tar.gz

# What a machine must have: the packages of every library that is linked.
depends=$(dpkg-deb --field "${deb[0]}" Depends)
echo "depends on $depends"
for library in libc6 libfmt libhwy1 libmd0 libstdc++6 libtbb12; do
  [[ $depends == *"$library"* ]] || { echo "the .deb does not depend on $library" >&2; exit 1; }
done
