# SPDX-License-Identifier: Apache-2.0
"""What fewer bits do to a trained GPT: its perplexity with attention, or with caches, in int8 and float8 e4m3.

    python examples/gpt/eight_bit.py                   # trains as train.py does, then evaluates
    python examples/gpt/eight_bit.py --device cuda --steps 1500 --context 2048 --width 768 --heads 6 --layers 8

The first nine tenths of the text are trained on, in float32, or on a GPU in bfloat16; the losses are of batches of the
rest, the same for all.
"""

import argparse
import json
import math
from itertools import islice
from pathlib import Path

import torch
import train
from attentions import strobe_attention
from model import Attention
from operands import OPERANDS
from text import Text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class LargestWeights:
    """Attention that notes how sharp it is: the largest weight of each of the last queries, on average."""

    QUERIES = 64

    def __init__(self) -> None:
        self.means: list[float] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        last = q[:, -self.QUERIES :].float()
        scores = torch.einsum("bqhd,bkhd->bhqk", last, k.float()) * q.shape[-1] ** -0.5
        keys, queries = scores.shape[-1], scores.shape[-2]
        hidden = torch.arange(keys, device=q.device) > torch.arange(keys - queries, keys, device=q.device)[:, None]
        self.means.append(scores.masked_fill(hidden, -math.inf).softmax(-1).amax(-1).mean().item())
        return strobe_attention(q, k, v)

    def mean(self) -> float:
        return sum(self.means) / len(self.means)


@torch.no_grad()
def loss_with(model: nn.Module, attention: Attention, text: Text, options: argparse.Namespace) -> float:
    """The mean over options.batches batches."""
    for block in model.blocks:
        block.attention = attention
    losses = []
    for inputs, targets in islice(text.batches(options.batch, options.context, options.seed), options.batches):
        with train.autocast(options):
            logits = model(inputs.to(options.device)).float()
        losses.append(cross_entropy(logits.flatten(0, 1), targets.to(options.device).flatten()))
    return torch.stack(losses).mean().item()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda; on a GPU the model computes in bfloat16")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batches", type=int, default=10, help="that the losses are means of")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--context", type=int, default=256, help="characters that the model sees")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, help="a file to learn instead of the Bible")
    parser.add_argument("--json", type=Path, default=Path("eight_bit.json"), help="where the losses are written")
    parser.set_defaults(accumulate=1, parallel="ddp", share="batch", checkpoint=None, relative_bias=0)
    return parser.parse_args()


def main() -> None:
    options = parse()
    text = Text.read(options.text)
    learned = len(text.tokens) * 9 // 10
    model, _ = train.train("strobe", Text(text.alphabet, text.tokens[:learned]), options)
    rest = Text(text.alphabet, text.tokens[learned:])
    exact = LargestWeights()
    losses = {}
    for name, attention in {"not rounded": exact, **OPERANDS}.items():
        losses[name] = loss = loss_with(model, attention, rest, options)
        difference = f"{loss - losses['not rounded']:+.1e}"
        print(f"{name:11}  loss {loss:.6f}  {difference}  perplexity {math.exp(loss):.5f}", flush=True)
    print(f"the largest of a query's weights is {exact.mean():.2f} on average")
    settings = {name: getattr(options, name) for name in (*train.SETTINGS, "batches")}
    record = {"device": train.device_name(options.device), "largest_weight": exact.mean(), "losses": losses}
    options.json.write_text(json.dumps(record | settings, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
