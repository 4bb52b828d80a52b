# SPDX-License-Identifier: Apache-2.0
"""A task that needs the whole context: the sum modulo 8 of two digits, anywhere among thousands of random tokens.

    python examples/gpt/long_context.py --length 2048 --cut 256 --device cpu
    python examples/gpt/long_context.py --length 65536 --sparse --tokens 524288
    python examples/gpt/long_context.py --length 131072 --fewer-bits

After the adding problem of Hochreiter and Schmidhuber ("Long short-term memory", 1997, section 5.4). The model, two
layers without positions, is trained on ever longer sequences, once on all of their tokens and once on the last --cut of
them, and answers behind the last token. Guessing is right once in eight. With --fewer-bits the first model also
answers with attention, or with caches, in int8 and float8 e4m3 (operands.py).
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import strobe
import strobe.torch
import torch
from model import Attention, Block
from operands import OPERANDS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

NOISE, DIGITS = 16, 8  # tokens: noise, then the digits, then the question
QUESTION = NOISE + DIGITS
BLOCK = 128  # of the block mask


Answers = tuple[Tensor, Tensor]  # logits [count, digits] and the sums [count]


def sequences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(tokens [count, length], the sums [count])."""
    tokens = torch.randint(NOISE, (count, length), generator=generator)
    places = torch.rand(count, length - 1, generator=generator).topk(2).indices
    digits = torch.randint(DIGITS, (count, 2), generator=generator)
    tokens.scatter_(1, places, NOISE + digits)
    tokens[:, -1] = QUESTION
    return tokens, digits.sum(1) % DIGITS


class Reader(nn.Module):
    def __init__(self, attention: Attention, width: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(QUESTION + 1, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attention) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, DIGITS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, digits] of the sum."""
        return self.head(self.norm(self.blocks(self.token(tokens))[:, -1]))


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return strobe.torch.attention(q, k, v, causal=True)


def sparse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Blocks of queries see their own block and the one before; the last one sees all."""
    length = q.shape[1]
    mask = torch.from_numpy(strobe.local_block_mask(length, length, left=1, right=0, block_size=BLOCK).copy())
    mask[..., -1, :] = 1
    return strobe.torch.attention(q, k, v, causal=True, block_mask=mask.to(q.device), block_size=BLOCK)


def answers(model: Reader, length: int, seen: int, generator: torch.Generator, options: argparse.Namespace) -> Answers:
    """To new questions of as many sequences as options.tokens hold."""
    tokens, sums = sequences(max(4, options.tokens // length), length, generator)
    with torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
        return model(tokens[:, -seen:].to(options.device)).float(), sums.to(options.device)


@torch.no_grad()
def accuracy(model: Reader, seen: int, generator: torch.Generator, options: argparse.Namespace) -> float:
    right: list[bool] = []
    while len(right) < options.questions:
        logits, sums = answers(model, options.length, seen, generator, options)
        right += (logits.argmax(-1) == sums).tolist()
    return sum(right) / len(right)


def learn(model: Reader, seen: int, generator: torch.Generator, options: argparse.Namespace) -> None:
    """Trains on ever longer sequences, on each until nearly all answers are right."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    lengths = [options.shortest << i for i in range((options.length // options.shortest).bit_length())]
    bar = tqdm(desc=f"{seen} tokens", unit="step")
    for length in lengths:
        mastered = 0.0  # the share of right answers, a running mean
        for _ in range(options.most_steps if length == options.shortest else options.steps):
            logits, sums = answers(model, length, seen, generator, options)
            loss = cross_entropy(logits, sums)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.update()
            bar.set_postfix(length=length, loss=f"{loss.item():.3f}")
            mastered += 0.1 * ((logits.argmax(-1) == sums).float().mean().item() - mastered)
            if mastered > 0.99:
                break
    bar.close()


def accuracies_in_fewer_bits(model: Reader, options: argparse.Namespace) -> dict[str, float]:
    """Of the same questions, by what attention computes on."""
    accuracies = {}
    for name, attention in {"not rounded": dense, **OPERANDS}.items():
        for block in model.blocks:
            block.attention = attention
        generator = torch.Generator().manual_seed(options.seed + 1)
        accuracies[name] = accuracy(model, options.length, generator, options)
    return accuracies


def train(seen: int, options: argparse.Namespace) -> dict[str, Any]:
    """A model that sees the last `seen` tokens: its accuracy on new sequences of the full length."""
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    attention = sparse if options.sparse else dense
    model = Reader(attention, options.width, options.heads).to(options.device)
    cuda = options.device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    learn(model, seen, generator, options)
    seconds = time.perf_counter() - start
    share = accuracy(model, seen, generator, options)
    peak = torch.cuda.max_memory_allocated() if cuda else None
    run: dict[str, Any] = {"seen": seen, "accuracy": share, "seconds": seconds, "peak_bytes": peak}
    if options.fewer_bits and seen == options.length:
        run["fewer_bits"] = accuracies_in_fewer_bits(model, options)
    return run


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16384, help="tokens of a sequence at the end of training")
    parser.add_argument(
        "--cut", type=int, default=1024, help="the last tokens, which the other model sees; 0: no other model"
    )
    parser.add_argument("--sparse", action="store_true", help="with a block mask")
    parser.add_argument("--fewer-bits", action="store_true", help="also answers with operands and caches in 8 bits")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--shortest", type=int, default=16, help="tokens at the start of training; they double")
    parser.add_argument("--most-steps", type=int, default=2000, help="of the shortest, unless it is learned before")
    parser.add_argument("--steps", type=int, default=400, help="of each longer one, likewise")
    parser.add_argument("--tokens", type=int, default=262144, help="of a step, but four sequences at least")
    parser.add_argument("--questions", type=int, default=400, help="that the accuracy is measured on")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2e-3, help="of learning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("long_context.json"))
    options = parser.parse_args()
    if options.fewer_bits and options.sparse:
        parser.error("--fewer-bits goes without --sparse: attention on 8-bit queries takes no block mask")
    return options


def main() -> None:
    options = parse()
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    views = [options.length] if options.cut == 0 else [options.length, options.cut]
    runs = [train(seen, options) for seen in views]
    settings = ("length", "cut", "sparse", "most_steps", "steps", "tokens", "width", "heads", "rate", "seed")
    record = {"device": device, "runs": runs} | {name: getattr(options, name) for name in settings}
    options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for run in runs:
        memory = f", {run['peak_bytes'] / 2**30:.1f} GiB" if run["peak_bytes"] else ""
        view = f"sees {run['seen']:6} of {options.length} tokens"
        print(f"{view}: {run['accuracy']:6.1%} right, {run['seconds']:.0f} s{memory}")
    for name, share in runs[0].get("fewer_bits", {}).items():
        print(f"  {name:11}: {share:6.1%} right")
    print(f"guessing: {1 / DIGITS:.1%}; {options.json} is written")


if __name__ == "__main__":
    main()
