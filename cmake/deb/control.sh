#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts right what cpack writes into a .deb's control file: control.sh PACKAGE.deb
# cpack counts the file behind every symbolic link into Installed-Size, and knows Multi-Arch from 3.31 on only.
set -euo pipefail
package=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# As dpkg-gencontrol counts: KiB of every file, rounded up, and one for anything else.
size=$(dpkg-deb --contents "$package" | awk '/^-/ { kib += int(($3 + 1023) / 1024); next } { ++kib } END { print kib }')
case $(dpkg-deb --field "$package" Package) in lib*) multi_arch=same ;; *) multi_arch=foreign ;; esac

dpkg-deb --control "$package" "$work/control"
sed -i -e "s/^Installed-Size: .*/Installed-Size: $size/" -e '/^Multi-Arch:/d' "$work/control/control"
sed -i "/^Architecture:/a Multi-Arch: $multi_arch" "$work/control/control"
tar --create --gzip --owner=0 --group=0 --numeric-owner --directory "$work/control" --file "$work/control.tar.gz" .
ar r "$package" "$work/control.tar.gz"
