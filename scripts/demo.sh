#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Searches the King James Bible by meaning; arguments go to the program: scripts/demo.sh "to forgive an enemy".
# `make demo` installs and builds what it needs.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fetch-model.sh
exec build/release/bin/sentence_search "$@"
