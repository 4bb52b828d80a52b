# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For scripts/wheels.sh and its test: Pythons with a stable ABI from a newer Debian, unpacked beside the system. No
# compiler is in them, and nothing of them is in a wheel.
suite=trixie python_name=python3.13
wheels=$PWD/build/wheels

# make_root ARCHITECTURE: build/wheels/root-ARCHITECTURE, and the headers of its Python in build/wheels/include-ARCHITECTURE.
make_root() {
  local architecture=$1 root=$wheels/root-$1 debian=arm64
  [[ $architecture == x86_64 ]] && debian=amd64
  if [[ ! -e $root/.complete ]]; then
    rm -rf "$root"
    mkdir -p "$wheels"
    echo "unpacking $python_name of Debian $suite for $architecture"
    mmdebstrap --quiet --variant=extract --architectures="$debian" \
      --include="base-files,libstdc++6,$python_name,lib$python_name-dev" "$suite" "$root"
    cp scripts/wheels/host-python.sh "$root/usr/bin/host-python"
    local include=$wheels/include-$architecture
    mkdir -p "$include/$architecture-linux-gnu"
    cp -R "$root/usr/include/$python_name" "$include"
    cp -R "$root/usr/include/$architecture-linux-gnu/$python_name" "$include/$architecture-linux-gnu"
    touch "$root/.complete"
  fi
}

# fetch_packages ARCHITECTURE FOLDER ARGUMENTS...: unpacks wheels for that Python and machine, whatever runs here; pip
# takes none whose tags do not fit.
fetch_packages() {
  local platforms=() version
  for version in 17 27 28 31 34; do platforms+=(--platform "manylinux_2_${version}_$1"); done
  .venv/bin/pip --quiet --disable-pip-version-check install --target "$2" --only-binary :all: --implementation cp \
    --python-version "${python_name#python}" --platform "manylinux2014_$1" "${platforms[@]}" "${@:3}"
}
