#!/usr/bin/env bash
# Searches the King James Bible by meaning; arguments go to the program: scripts/demo.sh "to forgive an enemy".
# Expects what `make demo` has installed and built.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fetch-model.sh
exec build/release/bin/sentence_search "$@"
