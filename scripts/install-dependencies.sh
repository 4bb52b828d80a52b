#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that Strobe is built, tested and demonstrated with; says nothing when they are all there.
# docs/dependencies.md gives the reason for each. Arguments are packages that are wanted besides; NAME:arm64 is that of
# another architecture, which dpkg then installs beside this machine's.
set -euo pipefail

packages=(
  make g++ cmake ninja-build ccache dpkg-dev pkgconf python3-dev python3-venv
  libhwy-dev libtbb-dev libfmt-dev libmd-dev
  libcli11-dev nlohmann-json3-dev libopenblas-dev
  libgtest-dev libgmock-dev fish zsh groff-base
  bible-kjv
  "$@"
)

native=$(dpkg --print-architecture)
installed=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}:${Architecture}\n' "${packages[@]}" \
  2>/dev/null | sed -n 's/^installed //p' || true)
missing=()
foreign=
for package in "${packages[@]}"; do
  name=${package%:*}
  architecture=$native
  [[ $package == *:* ]] && architecture=${package#*:}
  grep -qxF -e "$name:$architecture" -e "$name:all" <<<"$installed" && continue
  missing+=("$package")
  [[ $architecture == "$native" ]] || foreign=$architecture
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

if [[ -n $foreign ]] && ! dpkg --print-foreign-architectures | grep -qxF "$foreign"; then
  # Ubuntu's archive has amd64 and i386 alone: with a third architecture `apt-get update` would fail from then on.
  if [[ $(. /etc/os-release && echo "$ID") != debian ]]; then
    echo "Strobe needs Debian to install packages of $foreign beside $native ones. On Ubuntu add ports.ubuntu.com to" \
      "apt's sources for $foreign first, restrict the other sources to $native, and run:" \
      "dpkg --add-architecture $foreign && apt-get update" >&2
    exit 1
  fi
  "${as_root[@]}" dpkg --add-architecture "$foreign"
fi

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
