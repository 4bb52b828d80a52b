# SPDX-License-Identifier: Apache-2.0
"""Writes reference.safetensors: token ids and embeddings of sentences.txt by the transformers library.

The reference is independent of Strobe and of the example's tokeniser and encoder: it is what the model's own
implementation gives, computed in float64 so that its rounding does not show, mean-pooled and normalised as the model's
modules.json says. Made with torch 2.13.0, transformers 5.23.0 and safetensors 0.8.0:

    scripts/fetch-model.sh
    python tests/examples/make_reference.py build/models/all-MiniLM-L6-v2
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # the model is the folder's, never a newer one

import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer

HERE = Path(__file__).resolve().parent


def embed(model, token_ids):
    """One sentence at a time: no padding, hence no mask."""
    hidden = model(input_ids=torch.tensor([token_ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)


def main():
    folder = Path(sys.argv[1])
    max_tokens = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()

    sentences = (HERE / "sentences.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    token_ids = [tokenizer(s, truncation=True, max_length=max_tokens, padding=False)["input_ids"] for s in sentences]
    cu_seqlens = torch.tensor([0, *map(len, token_ids)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    with torch.no_grad():
        embeddings = torch.stack([embed(model, ids) for ids in token_ids])

    tensors = {
        "cu_seqlens": cu_seqlens,
        "token_ids": torch.tensor([i for ids in token_ids for i in ids], dtype=torch.int32),
        "embeddings": embeddings.to(torch.float32),
    }
    save_file(tensors, HERE / "reference.safetensors")


if __name__ == "__main__":
    main()
