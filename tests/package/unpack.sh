#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the packages of BUILD_FOLDER, for a maintainer of the test, and unpacks them into FOLDER/deb and FOLDER/tar: unpack.sh CPACK BUILD_FOLDER FOLDER
set -euo pipefail
cpack=$1 build=$2 folder=$3
rm -rf "$folder"
mkdir -p "$folder"/{packages,deb,tar}
DEBFULLNAME="Ada Lovelace" DEBEMAIL=ada@example.org "$cpack" --config "$build/CPackConfig.cmake" -B "$folder/packages"
for deb in "$folder"/packages/*.deb; do
  dpkg-deb --extract "$deb" "$folder/deb"
done
tar --extract --gzip --strip-components=1 --directory "$folder/tar" --file "$folder"/packages/*.tar.gz
