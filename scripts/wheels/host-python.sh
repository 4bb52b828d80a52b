#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python beside this file, with the C library of its own folder: it runs on systems whose own is older.
root=${0%/usr/bin/*}
exec "$root/lib64/ld-linux-x86-64.so.2" --argv0 "$0" --library-path "$root/usr/lib/x86_64-linux-gnu" \
  "$root/usr/bin/python3.13" "$@"
