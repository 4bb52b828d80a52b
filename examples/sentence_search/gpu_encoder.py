# SPDX-License-Identifier: Apache-2.0
"""Encodes the text on a GPU, without padding: BERT of transformers with Strobe's attention on packed sentences.

    python examples/sentence_search/gpu_encoder.py --out embeddings.npy
    build/release/bin/sentence_search --embeddings embeddings.npy "a storm at sea"

`--compare` encodes the same passages as padded batches with PyTorch's attention too and prints the speeds, and compares
some embeddings with those that the CPU computes in float32. Needs strobe, torch and transformers.
"""

import argparse
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from strobe.integrations.transformers import register
from torch import Tensor
from tqdm import tqdm
from transformers import BertModel, BertTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 256  # tokens of a passage that the encoder reads: the model's max_seq_length
CHECKED = 256  # passages that --compare encodes on the CPU


def read_passages(program: Path, text: Path | None) -> list[str]:
    arguments = [] if text is None else ["--text", str(text)]
    printed = subprocess.run([program, "--print-passages", *arguments], capture_output=True, text=True, check=True)
    return printed.stdout.splitlines()


def load(model: Path, attention: str, device: str, dtype: torch.dtype) -> BertModel:
    return BertModel.from_pretrained(model, attn_implementation=attention, dtype=dtype).eval().to(device)


def batches(lengths: np.ndarray, most: int, padded: bool) -> Iterator[np.ndarray]:
    """Passages, shortest first, as many as have `most` tokens together, padding counted where there is any."""
    batch: list[int] = []
    tokens = 0
    for passage in np.argsort(lengths, kind="stable"):
        tokens = (len(batch) + 1) * lengths[passage] if padded else tokens + lengths[passage]
        if batch and tokens > most:
            yield np.array(batch)
            batch, tokens = [], lengths[passage]
        batch.append(passage)
    yield np.array(batch)


def packed_forward(model: BertModel, sentences: list[np.ndarray]) -> Tensor:
    """The mean of every sentence's tokens, [sentences, hidden_size]. The sentences lie one after another."""
    lengths = np.array([len(x) for x in sentences])
    ends = lengths.cumsum()
    positions = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    cu_seqlens = torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32)).to(model.device)
    tokens = model(
        input_ids=torch.from_numpy(np.concatenate(sentences))[None].to(model.device),
        position_ids=torch.from_numpy(positions)[None].to(model.device),
        cu_seq_lens_q=cu_seqlens,
        cu_seq_lens_k=cu_seqlens,
        max_length_q=int(lengths.max()),
        max_length_k=int(lengths.max()),
    ).last_hidden_state[0]
    return torch.segment_reduce(tokens.float(), "mean", offsets=cu_seqlens.long(), axis=0)


def padded_forward(model: BertModel, sentences: list[np.ndarray]) -> Tensor:
    """The same of a batch of equal rows, as PyTorch's attention takes it."""
    lengths = np.array([len(x) for x in sentences])
    present = np.arange(lengths.max()) < lengths[:, None]
    rows = np.zeros(present.shape, np.int64)
    rows[present] = np.concatenate(sentences)
    mask = torch.from_numpy(present).to(model.device)
    ids = torch.from_numpy(rows).to(model.device)
    tokens = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
    return (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@torch.no_grad()
def encode(model: BertModel, sentences: list[np.ndarray], most: int, padded: bool) -> np.ndarray:
    """Unit vectors, float32 [sentences, hidden_size]."""
    lengths = np.array([len(x) for x in sentences])
    forward = padded_forward if padded else packed_forward
    order, parts = [], []
    for batch in tqdm(list(batches(lengths, most, padded)), desc="encoding", unit="batch", leave=False):
        order.append(batch)
        parts.append(torch.nn.functional.normalize(forward(model, [sentences[i] for i in batch])))
    embeddings = np.empty((len(sentences), parts[0].shape[1]), np.float32)
    embeddings[np.concatenate(order)] = torch.cat(parts).cpu().numpy()
    return embeddings


def seconds(model: BertModel, sentences: list[np.ndarray], most: int, padded: bool) -> float:
    encode(model, sentences, most, padded)  # the first call compiles and allocates
    times = []
    for _ in range(3):
        start = time.perf_counter()
        encode(model, sentences, most, padded)  # ends with a copy to the host
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare(options: argparse.Namespace, model: BertModel, sentences: list[np.ndarray], embeddings: np.ndarray) -> None:
    sample = np.linspace(0, len(sentences) - 1, min(CHECKED, len(sentences))).astype(int)
    cpu = load(options.model, "strobe", "cpu", torch.float32)
    exact = encode(cpu, [sentences[i] for i in sample], options.tokens, padded=False)
    cosines = (exact * embeddings[sample]).sum(1)
    print(f"{len(sample)} passages beside the CPU in float32: cosines of at least {cosines.min():.6f}")
    total = sum(len(x) for x in sentences)
    for name, implementation, padded in (("Strobe, packed", "strobe", False), ("PyTorch, padded", "sdpa", True)):
        other = (
            model if implementation == "strobe" else load(options.model, implementation, options.device, model.dtype)
        )
        taken = seconds(other, sentences, options.tokens, padded)
        print(f"{name:<16} {len(sentences) / taken:9.0f} passages/s {total / taken:10.0f} tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bin/sentence_search")
    parser.add_argument("--model", type=Path, default=ROOT / "build/models/all-MiniLM-L6-v2")
    parser.add_argument("--text", type=Path, help="lines of this file instead of the King James Bible")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--tokens", type=int, default=65536, help="of a batch")
    parser.add_argument("--out", type=Path, default=Path("embeddings.npy"))
    parser.add_argument("--compare", action="store_true", help="check against the CPU, time beside PyTorch")
    options = parser.parse_args()
    register()
    passages = read_passages(options.program, options.text)
    tokenizer = BertTokenizerFast(str(options.model / "vocab.txt"), do_lower_case=True)
    sentences = [np.array(x) for x in tokenizer(passages, truncation=True, max_length=LONGEST)["input_ids"]]
    dtype = torch.float16 if options.device == "cuda" else torch.float32
    model = load(options.model, "strobe", options.device, dtype)
    start = time.perf_counter()
    embeddings = encode(model, sentences, options.tokens, padded=False)
    print(f"{len(sentences)} passages encoded on {options.device} in {time.perf_counter() - start:.1f} s")
    np.save(options.out, embeddings)
    if options.compare:
        compare(options, model, sentences, embeddings)


if __name__ == "__main__":
    main()
