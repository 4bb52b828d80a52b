# SPDX-License-Identifier: Apache-2.0
"""How fast a GPT of billions of parameters trains with each attention: the same model and whole steps, in turns.

    python examples/gpt/speed.py --device cuda --sizes 1.3b 2.7b --contexts 2048 8192 --compile

Random tokens, bfloat16 on a GPU, AdamW with weights in float32; `llama` is four layers of transformers' Llama 3 8B
with weights in bfloat16. Model FLOPs of a sequence are counted as
FlashAttention-2 does (Dao, 2023, section 4.2): 6 seqlen parameters + 12 layers width seqlen^2.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import plot_speed
import torch
from attentions import ATTENTIONS
from model import Gpt
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

VOCABULARY = 50304  # GPT-2's, rounded up to a multiple of 64
SIZES = {
    "tiny": {"width": 64, "heads": 2, "layers": 2},
    "1.3b": {"width": 2048, "heads": 16, "layers": 24},
    "2.7b": {"width": 2560, "heads": 20, "layers": 32},
    "llama": {"width": 4096, "heads": 32, "layers": 4},
    "llama-tiny": {"width": 128, "heads": 4, "layers": 2},
}


def make_model(size: str, context: int, device: str) -> nn.Module:
    """With `blocks`, `token` and `use`, the name of an attention."""
    if size.startswith("llama"):
        from llama import make_llama

        return make_llama(VOCABULARY, context, device, **SIZES[size])
    with torch.device(device):
        return NamedGpt(VOCABULARY, context, ATTENTIONS["sdpa"], **SIZES[size])


class NamedGpt(Gpt):
    """A GPT whose attention is chosen by its name."""

    def use(self, attention: str) -> None:
        for block in self.blocks:
            block.attention = ATTENTIONS[attention]


class Trainer:
    """A model, its optimizer and a batch; the attention can be changed."""

    def __init__(self, size: str, context: int, options: argparse.Namespace) -> None:
        self.device = options.device
        torch.manual_seed(0)
        self.model = make_model(size, context, self.device)
        if options.compile:
            for block in self.model.blocks:
                block.compile(dynamic=False)
        fused = self.device == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        self.sequences, self.context = max(1, options.tokens // context), context
        self.tokens = torch.randint(VOCABULARY, (self.sequences, context + 1), device=self.device)

    def step(self) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(self.tokens[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def flops(self) -> float:
        """Of a step. The table of tokens is looked up, not multiplied with."""
        model = self.model
        parameters = sum(x.numel() for x in model.parameters()) - model.token.weight.numel()
        attention = 12 * len(model.blocks) * model.token.embedding_dim * self.context**2
        return self.sequences * (6 * self.context * parameters + attention)

    def seconds(self, steps: int) -> float:
        """Of a step, the mean of `steps`."""
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps


def peak_bytes(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def warm_up(trainer: Trainer, name: str) -> int | None:
    """The most memory that a step takes, in bytes; None if there is too little."""
    trainer.model.use(name)
    if trainer.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        trainer.seconds(2)
        return peak_bytes(trainer.device)
    except torch.OutOfMemoryError:
        trainer.optimizer.zero_grad()
        torch.cuda.empty_cache()
        return None


def measure(size: str, context: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each attention. One that runs out of memory has no seconds."""
    torch.compiler.reset()  # after eight versions of the blocks it would compile no more
    trainer = Trainer(size, context, options)
    memory = {name: warm_up(trainer, name) for name in options.attention}
    times: dict[str, list[float]] = {name: [] for name, most in memory.items() if most is not None}
    for _ in tqdm(range(options.rounds), desc=f"{size}, {context} tokens", unit="round"):
        for name, seconds in times.items():
            trainer.model.use(name)
            seconds.append(trainer.seconds(options.steps))
    rows = []
    for name in options.attention:
        row: dict[str, Any] = {"size": size, "context": context, "attention": name, "batch": trainer.sequences}
        if name in times:
            seconds = statistics.median(times[name])
            row |= {"seconds": seconds, "peak_bytes": memory[name]}
            tokens = trainer.sequences * context
            row |= {"tokens_per_second": tokens / seconds, "tflops": trainer.flops() / seconds / 1e12}
        rows.append(row)
    return rows


def show(row: dict[str, Any]) -> str:
    place = f"{row['size']:>5} {row['context']:>6} tokens  {row['attention']:<7}"
    if "seconds" not in row:
        return f"{place} out of memory"
    memory = f"{row['peak_bytes'] / 2**30:6.1f} GiB" if row["peak_bytes"] else ""
    return f"{place} {row['tokens_per_second']:9.0f} tokens/s {row['tflops']:7.1f} TFLOP/s {memory}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["1.3b"])
    parser.add_argument("--contexts", nargs="+", type=int, default=[2048, 8192], help="tokens of a sequence")
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=["strobe", "cudnn", "flash", "math"])
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--tokens", type=int, default=16384, help="of a step, in sequences of each context")
    parser.add_argument("--compile", action="store_true", help="compile the model's blocks with torch.compile")
    parser.add_argument("--rounds", type=int, default=5, help="medians are over these")
    parser.add_argument("--steps", type=int, default=2, help="of each attention in a round")
    parser.add_argument("--json", type=Path, default=Path("speed.json"))
    parser.add_argument("--plot", type=Path, default=Path("speed.svg"))
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    record: dict[str, Any] = {"device": device, "torch": torch.__version__, "compiled": options.compile, "rows": []}
    for size in options.sizes:
        for context in options.contexts:
            rows = measure(size, context, options)
            print("\n".join(show(row) for row in rows), flush=True)
            record["rows"] += rows
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plot_speed.draw(record, options.plot)
    print(f"{options.json} is written and {options.plot} drawn")


if __name__ == "__main__":
    main()
