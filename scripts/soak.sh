#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares context parallelism on 8 processes with one, then random configurations with the float64 reference for a
# given time, beginning with a random seed. Stops at the first failure and prints how to reproduce it.
set -euo pipefail
if (($# != 1)) || [[ ! $1 =~ ^[0-9]+$ ]]; then
  echo "usage: scripts/soak.sh SECONDS" >&2
  exit 2
fi
cd "$(dirname "$0")/.."
limit=$1
program=build/release/bin/random_tests
per_step=50
build/python-environment/bin/python tests/python/context_parallel.py 8
log=$(mktemp)
trap 'rm -f "$log"' EXIT

first=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
done=0
SECONDS=0 # bash counts it up
echo "random configurations from seed $first, for $limit s"
while ((SECONDS < limit)); do
  if ! STROBE_FIRST_SEED=$((first + done)) STROBE_SEEDS=$per_step "$program" >"$log" 2>&1; then
    cat "$log" >&2
    echo "failed after $done configurations; the line that begins with 'reproduce with' has the command for this one" >&2
    exit 1
  fi
  done=$((done + per_step))
  printf '  %7d configurations, %5d s\n' "$done" "$SECONDS"
done
echo "$done configurations within their bounds"
