#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Searches the King James Bible by meaning; arguments go to the program: scripts/demo.sh "to forgive an enemy".
# `make demo` installs and builds what it needs. Where python3 has strobe, transformers and a torch that sees a GPU, the
# whole Bible is encoded there first.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fetch-model.sh
program=build/release/bin/sentence_search
has_gpu='import strobe.torch, torch, tqdm, transformers; raise SystemExit(not torch.cuda.is_available())'
if [[ " $* " != *" --text "* ]] && python3 -c "$has_gpu" 2>/dev/null; then
  embeddings=build/models/bible.npy
  python3 examples/sentence_search/gpu_encoder.py --program "$program" --out "$embeddings" --compare
  set -- --embeddings "$embeddings" "$@"
fi
exec "$program" "$@"
