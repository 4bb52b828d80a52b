#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs libFuzzer on each target for the seconds given, beginning with the committed corpus. New inputs are kept in
# build/fuzz/found, failing ones in build/fuzz/crash-NAME-*, with the command that reproduces the failure.
# scripts/fuzz.sh SECONDS; scripts/fuzz.sh merge adds the found inputs that reach new code to the committed corpus.
set -euo pipefail
if (($# != 1)) || [[ ! $1 =~ ^([0-9]+|merge)$ ]]; then
  echo "usage: scripts/fuzz.sh SECONDS|merge" >&2
  exit 2
fi
cd "$(dirname "$0")/.."
corpus=tests/fuzz/corpus
build=build/fuzz
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for inputs in "$corpus"/*.hex; do
  name=$(basename "$inputs" .hex)
  seeds=$build/seeds/$name
  found=$build/found/$name
  rm -rf "$seeds"
  mkdir -p "$found"
  python3 scripts/fuzz_corpus.py unpack "$inputs" "$seeds"
  if [[ $1 == merge ]]; then
    "$build/bin/${name}_fuzz" -merge=1 -max_len=512 "$seeds" "$found" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    python3 scripts/fuzz_corpus.py add "$inputs" "$seeds"
    continue
  fi
  if ! "$build/bin/${name}_fuzz" -max_total_time="$1" -max_len=512 -timeout=20 -rss_limit_mb=4096 \
    -artifact_prefix="$build/crash-$name-" -print_final_stats=1 "$found" "$seeds" >"$log" 2>&1; then
    grep -v '^#' "$log" >&2
    echo "$name: an input fails; reproduce with: $build/bin/${name}_fuzz $build/crash-$name-..." >&2
    exit 1
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '  %-12s %9d inputs in %d s, no failures\n' "$name" "$runs" "$1"
done
