#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what the checks on a GPU need into FOLDER/kit.tar.xz, to be run by scripts/gpu/jobs.py on a machine that has
# Python 3.12 or later, the CUDA driver, and for most of the jobs PyTorch and pytest, but none of this:
#   the repository's own files, where they are in the repository: scripts, tests, benchmarks, examples, headers
#   build/release: libstrobe.so with the pack of kernels, the program and the tests that need a GPU, stripped
#   build/mutation-gpu: the tests and the library in which each mutation of the kernels can be turned on
#   lib: the shared libraries that those load and that a bare machine lacks
#   site: the Python package, the drop-ins and the backend for vLLM, unpacked
#   kit.json: version, commit, and the names of the tests
# scripts/gpu/kit.sh FOLDER
# It builds what is missing or old. WHEELS=FOLDER has wheels that were built elsewhere; otherwise they are those of
# `make wheels`, which run on every Python from 3.12 on. MUTATIONS=no leaves those out, MOST_MIB=45 makes a larger archive
# an error, JOBS is how many compilers run at once.
set -euo pipefail
if (($# != 1)); then
  echo "usage: scripts/gpu/kit.sh FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
jobs=${JOBS:-$(nproc)}
programs=(gpu_tests gpu_random_tests runtime_gpu_tests cli_tests strobe quickstart_gpu)

scripts/install-dependencies.sh
[[ -e build/release/build.ninja ]] || cmake --preset release --log-level=NOTICE
cmake --build --preset release --parallel "$jobs" --target strobe strobe_program "${programs[@]}"
if [[ ${MUTATIONS:-yes} != no ]]; then python3 scripts/mutation/run_gpu.py --build-only; fi
wheels=${WHEELS:-}
if [[ -z $wheels ]]; then
  wheels=build/wheels/dist
  scripts/wheels.sh x86_64
fi

kit=$(mktemp -d)
trap 'rm -rf "$kit"' EXIT
# Pictures and the corpora of bytes are what no check reads.
git ls-files -z -- ':!*.svg' ':!docs/assets' ':!docs/figures' ':!tests/fuzz/corpus' ':!packaging' ':!.github' |
  xargs -0 cp --parents -t "$kit"

# take FROM TO NAME...: programs or libraries without their symbols.
take() {
  local from=$1 to=$kit/$2 name
  mkdir -p "$to"
  for name in "${@:3}"; do strip --strip-unneeded -o "$to/$name" "$(realpath "$from/$name")"; done
}

soname() { readelf --dynamic "$1" | sed -n 's/.*Library soname: \[\(.*\)\]/\1/p'; }

library=$(soname build/release/lib/libstrobe.so)
take build/release/bin build/release/bin "${programs[@]}"
take build/release/lib build/release/lib "$library"
ln -s "$library" "$kit/build/release/lib/libstrobe.so"
if [[ ${MUTATIONS:-yes} != no ]]; then
  take build/mutation-gpu/build/bin build/mutation-gpu/build/bin gpu_tests gpu_random_tests
  take build/mutation-gpu/build/lib build/mutation-gpu/build/lib "$library"
fi

# The compiler's own libraries and the C library are the machine's.
mkdir "$kit/lib"
LD_LIBRARY_PATH=build/release/lib ldd "$kit"/build/release/bin/* | sed -n 's/^\t\(\S*\) => \(\S*\) .*/\1 \2/p' | sort -u |
  while read -r name path; do
    case $name in
      libc.* | libm.* | libdl.* | librt.* | libpthread.* | libgcc_s.* | libstdc++.* | "$library") ;;
      *) strip --strip-unneeded -o "$kit/lib/$name" "$(realpath "$path")" ;;
    esac
  done

mkdir "$kit/site"
for wheel in "$wheels"/*.whl; do
  case $(basename "$wheel") in
    *aarch64.whl | strobe_sglang-* | strobe_kernels-*) ;;
    *) python3 -m zipfile --extract "$wheel" "$kit/site" ;;
  esac
done
for name in strobe flash_attn; do
  [[ -d $kit/site/$name ]] || { echo "$wheels has no wheel with the package $name" >&2; exit 1; }
done
if ! compgen -G "$kit/site/strobe/_core.abi3.so" >/dev/null; then
  echo "the wheel in $wheels is for one version of Python alone: $(basename "$kit"/site/strobe/_core*.so)" >&2
fi

LD_LIBRARY_PATH=$kit/build/release/lib:$kit/lib python3 scripts/gpu/list_tests.py "$kit" build/release/bin/gpu_tests

# Kernels are in several of its files: a dictionary that reaches from one to the other packs them once.
tar -C "$kit" --sort=name --owner=0 --group=0 -c . | xz --threads=1 --lzma2=preset=6,dict=192MiB >"$folder/kit.tar.xz.new"
mv "$folder/kit.tar.xz.new" "$folder/kit.tar.xz"
without=()
[[ ${MUTATIONS:-yes} != no ]] || without=(--without '^mutations')
python3 "$kit/scripts/gpu/jobs.py" "$folder/kit.tar.xz" --dry-run "${without[@]}"
mib=$(($(stat --format=%s "$folder/kit.tar.xz") / 1048576 + 1))
echo "$folder/kit.tar.xz: $mib MiB"
if ((mib > ${MOST_MIB:-$mib})); then
  echo "that is more than $MOST_MIB MiB" >&2
  exit 1
fi
