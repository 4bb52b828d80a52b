#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs SGLang's Python modules and what they import, for Python 3.12, into FOLDER/sglang.tar.xz: what tests/sglang
# needs on a machine that has PyTorch, transformers and SciPy, a GPU and no network. SGLang's kernels are not among them.
# scripts/gpu/sglang_site.sh FOLDER
# build/sglang/environment must have SGLang (make sglang). TORCHVISION is the version for that machine's PyTorch, 0.26.0
# for 2.11. There: tar -xJf sglang.tar.xz -C SITE; export SGLANG_SITE=SITE
set -euo pipefail
if (($# != 1)); then
  echo "usage: scripts/gpu/sglang_site.sh FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
environment=build/sglang/environment
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

# What the other machine has, and what the modules do not import there.
there='torch|torchvision|triton|nvidia|cuda|transformers|tokenizers|safetensors|huggingface|hf-xet|numpy|scipy|sympy|mpmath|networkx'
unused='strobe|sglang|pip|setuptools|ninja|numba|llvmlite|openai-harmony|outlines|pytest|pluggy|iniconfig|uvloop|blobfile|llguidance'
"$environment/bin/pip" --disable-pip-version-check freeze | grep '==' | grep -v -E "^($there|$unused)" >"$site/requirements.txt"
echo "torchvision==${TORCHVISION:-0.26.0}" >>"$site/requirements.txt"
python3 -m pip --quiet --disable-pip-version-check download --no-deps --only-binary=:all: --python-version 3.12 \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
  --dest "$site/wheels" --requirement "$site/requirements.txt"
mkdir "$site/site"
for wheel in "$site"/wheels/*.whl; do python3 -m zipfile --extract "$wheel" "$site/site"; done
find "$site/site" -name '*.so*' -size +100k -exec strip --strip-unneeded {} +
# Modules look for the sources of kernels beside them when they are imported.
(cd "$environment"/lib/python3*/site-packages &&
  find sglang -name '*.py' -print0 | xargs -0 cp --parents -t "$site/site" &&
  cp --recursive --parents -t "$site/site" sglang/kernels/jit/{include,csrc})
tar -C "$site/site" --sort=name --owner=0 --group=0 -c . | xz --threads=0 -4 >"$folder/sglang.tar.xz"
ls -l "$folder/sglang.tar.xz"
