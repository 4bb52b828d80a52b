# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on the King James Bible, character by character, once with each attention, and plots the losses.

    python examples/gpt/train.py                       # a few minutes on two cores
    python examples/gpt/train.py --device cuda --steps 2000 --context 1024

Both runs begin with the same weights and see the same batches, so the curves differ by rounding alone. Debian's package
bible-kjv holds the text; --text FILE takes another.
"""

import argparse
import subprocess
import time
from pathlib import Path

import torch
from model import Attention, Gpt
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from tqdm import tqdm


def strobe_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    import strobe.torch

    return strobe.torch.attention(q, k, v, causal=True)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


ATTENTIONS: dict[str, Attention] = {"strobe": strobe_attention, "sdpa": sdpa_attention}


def read_text(path: Path | None) -> str:
    if path is not None:
        return path.read_text(encoding="utf-8")
    command = ["bible", "-f", "gen1:1-rev22:21"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except FileNotFoundError:
        raise SystemExit(
            "there is no program `bible`: install Debian's package bible-kjv, or give --text FILE"
        ) from None
    return "\n".join(line.partition(" ")[2] for line in lines)


def batches(tokens: Tensor, options: argparse.Namespace):
    """The same ones for the same seed: (tokens, the ones after them), each [batch, context]."""
    generator = torch.Generator().manual_seed(options.seed)
    offsets = torch.arange(options.context + 1)
    for _ in range(options.steps):
        starts = torch.randint(len(tokens) - options.context, (options.batch, 1), generator=generator)
        window = tokens[starts + offsets].to(options.device)
        yield window[:, :-1], window[:, 1:]


def autocast(options: argparse.Namespace) -> torch.autocast:
    """On a GPU the model computes in bfloat16."""
    device = options.device.partition(":")[0]
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def train(name: str, tokens: Tensor, characters: int, options: argparse.Namespace) -> tuple[Gpt, list[float]]:
    torch.manual_seed(options.seed)
    model = Gpt(characters, options.context, ATTENTIONS[name]).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=options.steps)
    losses = []
    progress = tqdm(batches(tokens, options), desc=f"{name:>6}", total=options.steps, unit="step")
    for inputs, targets in progress:
        with autocast(options):
            loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        progress.set_postfix(loss=f"{losses[-1]:.3f}")
    return model, losses


@torch.no_grad()
def loss_with(name: str, model: Gpt, tokens: Tensor, options: argparse.Namespace) -> float:
    """Of a trained model on the first batch, when it attends as `name` does; it goes on to."""
    for block in model.blocks:
        block.attention = ATTENTIONS[name]
    inputs, targets = next(batches(tokens, options))
    with autocast(options):
        return cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()


def plot(losses: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "strobe"  # the same curves give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    styles = {"strobe": {"linewidth": 3.5, "alpha": 0.45}, "sdpa": {"linewidth": 1.0, "color": "black"}}
    for name, curve in losses.items():
        axes.plot(range(1, len(curve) + 1), curve, label=name, **styles[name])
    axes.set(xlabel="step", ylabel="cross entropy per character", title="A small GPT on the King James Bible")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=list(ATTENTIONS))
    parser.add_argument("--device", default="cpu", help="cpu or cuda; on a GPU the model computes in bfloat16")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--context", type=int, default=256, help="characters that the model sees")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, help="a file to learn instead of the Bible")
    parser.add_argument("--plot", type=Path, default=Path("losses.svg"), help="where the curves are drawn")
    return parser.parse_args()


def main() -> None:
    options = parse()
    text = read_text(options.text)
    alphabet = sorted(set(text))
    index_of = {character: index for index, character in enumerate(alphabet)}
    tokens = torch.tensor([index_of[character] for character in text])
    losses: dict[str, list[float]] = {}
    refused = []
    for name in options.attention:
        start = time.perf_counter()
        try:
            model, losses[name] = train(name, tokens, len(alphabet), options)
        except NotImplementedError as refusal:
            print(f"{name} cannot train on {options.device}: {refusal}")
            refused.append(name)
            continue
        print(f"{name}: loss {losses[name][-1]:.4f} after {time.perf_counter() - start:.0f} s")
    if not losses:
        raise SystemExit(1)
    if len(losses) == 2:
        difference = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
        print(f"the losses differ by {difference:.1e} at most")
    for name in refused:
        (trainer,) = losses
        theirs, ours = (loss_with(each, model, tokens, options) for each in (trainer, name))
        print(f"what {trainer} trained has loss {theirs:.4f} on the first batch, and {ours:.4f} with {name}'s forward")
    plot(losses, options.plot)
    with autocast(options):
        written = model.write(tokens[:1, None].to(options.device), 200)
    print(f"{options.plot} is drawn; the model writes:\n")
    print("".join(alphabet[index] for index in written[0].tolist()))


if __name__ == "__main__":
    main()
