#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that Strobe is built, tested and demonstrated with; says nothing when they are all there.
# docs/dependencies.md gives the reason for each. Arguments are packages that are wanted besides.
set -euo pipefail

packages=(
  make g++ cmake ninja-build ccache dpkg-dev pkgconf python3-dev python3-venv
  libhwy-dev libtbb-dev libfmt-dev libmd-dev
  libcli11-dev nlohmann-json3-dev libopenblas-dev
  libgtest-dev libgmock-dev
  bible-kjv
  "$@"
)

installed=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
  sed -n 's/^installed //p' || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "$package" <<<"$installed" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then exit 0; fi

as_root=()
if ((EUID != 0)); then
  # A password can only be typed at a terminal.
  if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
    echo "Strobe needs these Debian packages and can become neither root nor sudo to install them;" \
      "please run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install=(install --no-install-recommends "${missing[@]}")
# The package lists of a fresh machine are empty or stale: fetch them only when the first attempt fails.
if ! apt_get "${install[@]}" >"$log" 2>&1 && ! { apt_get update && apt_get "${install[@]}"; } >>"$log" 2>&1; then
  cat "$log" >&2
  echo "apt-get could not install: ${missing[*]}" >&2
  exit 1
fi
