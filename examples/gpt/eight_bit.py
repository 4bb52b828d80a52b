# SPDX-License-Identifier: Apache-2.0
"""What 8-bit attention does to a trained GPT: its loss with Q, K and V in float32, bfloat16, int8 and float8 e4m3.

    python examples/gpt/eight_bit.py                   # trains as train.py does, then evaluates

The first nine tenths of the text are trained on, in float32; the losses are of batches of the rest, the same for all.
"""

import argparse
from itertools import islice
from pathlib import Path

import strobe
import torch
import train
from attentions import strobe_attention
from model import Attention
from text import Text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def bfloat16_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return strobe.attention(*(x.bfloat16() for x in (q, k, v)), causal=True).float()


def eight_bit_attention(element: str) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = strobe.quantize(q, k, v, element=element)
        return strobe.attention(x.q, x.k, x.v, causal=True, **x.options)

    return attention


OPERANDS: dict[str, Attention] = {
    "float32": strobe_attention,
    "bfloat16": bfloat16_attention,
    "int8": eight_bit_attention("int8"),
    "float8_e4m3fn": eight_bit_attention("float8_e4m3fn"),
}


@torch.no_grad()
def loss_with(model: nn.Module, attention: Attention, text: Text, options: argparse.Namespace) -> float:
    """The mean over options.batches batches."""
    for block in model.blocks:
        block.attention = attention
    batches = text.batches(options.batch, options.context, options.seed)
    losses = [
        cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        for inputs, targets in islice(batches, options.batches)
    ]
    return torch.stack(losses).mean().item()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batches", type=int, default=10, help="that the losses are means of")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--context", type=int, default=256, help="characters that the model sees")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, help="a file to learn instead of the Bible")
    parser.set_defaults(device="cpu", accumulate=1, parallel="ddp", share="batch", checkpoint=None, relative_bias=0)
    return parser.parse_args()


def main() -> None:
    options = parse()
    text = Text.read(options.text)
    learned = len(text.tokens) * 9 // 10
    model, _ = train.train("strobe", Text(text.alphabet, text.tokens[:learned]), options)
    rest = Text(text.alphabet, text.tokens[learned:])
    exact = None
    for name, attention in OPERANDS.items():
        loss = loss_with(model, attention, rest, options)
        exact = loss if exact is None else exact
        print(f"{name:13}  loss {loss:.6f}  {loss - exact:+.1e}", flush=True)


if __name__ == "__main__":
    main()
