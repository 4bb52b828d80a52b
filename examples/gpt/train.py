# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on the King James Bible, character by character, once with each attention, and plots the losses.

    python examples/gpt/train.py                       # a few minutes on two cores
    python examples/gpt/train.py --device cuda --steps 1000 --context 1024 --width 768 --heads 6 --layers 8

All runs begin with the same weights and see the same batches, so the curves differ by rounding alone. Debian's package
bible-kjv holds the text; --text FILE takes another.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import plot_losses
import torch
from model import Attention, Gpt
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from tqdm import tqdm


def strobe_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    import strobe.torch

    return strobe.torch.attention(q, k, v, causal=True)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


def math_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's unfused attention: what another order of the same sums does to the losses."""
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa_attention(q, k, v)


ATTENTIONS: dict[str, Attention] = {"strobe": strobe_attention, "sdpa": sdpa_attention, "math": math_attention}


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
    size = {"width": options.width, "heads": options.heads, "layers": options.layers}
    model = Gpt(characters, options.context, ATTENTIONS[name], **size).to(options.device)
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


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=["strobe", "sdpa"])
    parser.add_argument("--device", default="cpu", help="cpu or cuda; on a GPU the model computes in bfloat16")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--context", type=int, default=256, help="characters that the model sees")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, help="a file to learn instead of the Bible")
    parser.add_argument("--json", type=Path, default=Path("losses.json"), help="where the losses are written")
    parser.add_argument("--plot", type=Path, default=Path("losses.svg"), help="where they are drawn")
    return parser.parse_args()


def main() -> None:
    options = parse()
    text = read_text(options.text)
    alphabet = sorted(set(text))
    index_of = {character: index for index, character in enumerate(alphabet)}
    tokens = torch.tensor([index_of[character] for character in text])
    losses: dict[str, list[float]] = {}
    for name in options.attention:
        start = time.perf_counter()
        model, losses[name] = train(name, tokens, len(alphabet), options)
        print(f"{name}: loss {losses[name][-1]:.4f} after {time.perf_counter() - start:.0f} s")
    for name, largest in plot_losses.differences(losses).items():
        print(f"the losses of {name} and {plot_losses.BASE} differ by {max(largest):.1e} at most")
    settings = ("steps", "batch", "context", "width", "heads", "layers", "seed")
    record: dict[str, Any] = {"device": device_name(options.device), "torch": torch.__version__}
    record |= {name: getattr(options, name) for name in settings} | {"losses": losses}
    options.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    plot_losses.draw(record, options.plot)
    with autocast(options):
        written = model.write(tokens[:1, None].to(options.device), 200)
    print(f"{options.json} is written and {options.plot} drawn; the model writes:\n")
    print("".join(alphabet[index] for index in written[0].tolist()))


if __name__ == "__main__":
    main()
