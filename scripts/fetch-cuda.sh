#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches NVIDIA's run-time compiler and the CUDA headers from PyPI into the folder given, for building Strobe's GPU
# kernels where there is no CUDA toolkit. Does nothing when they are there already.
set -euo pipefail
if (($# != 1)); then
  echo "usage: scripts/fetch-cuda.sh FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
requirements=scripts/requirements-cuda.txt

# One fetch at a time: several builds may configure at once.
exec {lock}>"$folder/.lock"
flock "$lock"
if cmp -s "$requirements" "$folder/.fetched"; then exit 0; fi

echo "downloading NVRTC and the CUDA headers from PyPI (186 MB; for aarch64, 93 MB)"
download=$(mktemp -d "$folder/download.XXXXXX")
trap 'rm -rf "$download"' EXIT
scripts/python-environment.sh
if ! .venv/bin/pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
  --dest "$download" --requirement "$requirements" 2>"$download/log"; then
  cat "$download/log" >&2
  echo "NVRTC could not be downloaded from PyPI" >&2
  exit 1
fi
for wheel in "$download"/*.whl; do
  .venv/bin/python -m zipfile --extract "$wheel" "$download/unpacked"
done
rm -f "$download"/unpacked/nvidia/*/lib/*.alt.so.*  # a second build of each library, of no use here
rm -rf "$folder/nvidia"
mv "$download/unpacked/nvidia" "$folder/nvidia"
cp "$requirements" "$folder/.fetched"
