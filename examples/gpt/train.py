# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on the King James Bible, character by character, once with each attention, and plots the losses.

    python examples/gpt/train.py                       # a few minutes on two cores
    python examples/gpt/train.py --device cuda --steps 1000 --context 1024 --width 768 --heads 6 --layers 8
    torchrun --nproc-per-node 4 examples/gpt/train.py --device cuda --attention strobe --parallel fsdp
    torchrun --nproc-per-node 4 examples/gpt/train.py --device cuda --attention strobe --parallel fsdp --share sequences

All runs begin with the same weights and see the same batches, so the curves differ by rounding alone. With --checkpoint
FOLDER a run that was killed goes on from there. Debian's package bible-kjv holds the text; --text FILE takes another.
"""

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import checkpoint
import parallel
import plot_losses
import torch
from attentions import ATTENTIONS, RELATIVE_ATTENTIONS
from model import Gpt
from text import Text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

SETTINGS = ("steps", "batch", "context", "width", "heads", "layers", "relative_bias", "seed")


def autocast(options: argparse.Namespace) -> torch.autocast:
    """On a GPU the model computes in bfloat16."""
    device = options.device.partition(":")[0]
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def micro_batches(batch: Tensor, count: int) -> tuple[Tensor, ...]:
    if len(batch) % count != 0:
        raise SystemExit(f"--accumulate {count} does not divide the {len(batch)} sequences of a process")
    return batch.chunk(count)


def gradients(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    options: argparse.Namespace,
    shared: parallel.SharedSequences | None,
) -> float:
    """Adds those of a batch to the model's, one micro-batch after another. Returns the batch's loss."""
    share = parallel.share if shared is None else shared.share
    parts = [micro_batches(share(x), options.accumulate) for x in (inputs, targets)]
    positions = None if shared is None else shared.positions(options.device)
    total = torch.zeros((), device=options.device)
    for number, (tokens, after) in enumerate(zip(*parts, strict=True), start=1):
        parallel.synchronize(model, wanted=number == len(parts[0]))
        with autocast(options):
            logits = model(tokens.to(options.device), positions).flatten(0, 1)
            loss = cross_entropy(logits, after.to(options.device).flatten()) / len(parts[0])
        loss.backward()
        total += loss.detach()
    return parallel.mean(total)


def train(name: str, text: Text, options: argparse.Namespace) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(options.seed)
    size = {"width": options.width, "heads": options.heads, "layers": options.layers, "reach": options.relative_bias}
    shared = parallel.SharedSequences() if options.share == "sequences" else None
    attentions = RELATIVE_ATTENTIONS if options.relative_bias > 0 else ATTENTIONS
    attention = attentions[name] if shared is None else shared.attention
    model = Gpt(len(text.alphabet), options.context, attention, **size).to(options.device)
    model = parallel.distribute(model, options.parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=options.steps)
    settings = {setting: getattr(options, setting) for setting in SETTINGS}
    losses = []
    if options.checkpoint is not None:
        path = options.checkpoint / f"{name}.pt"
        losses = checkpoint.load(path, model, optimizer, schedule, settings)
    batches = islice(text.batches(options.batch, options.context, options.seed), len(losses), options.steps)
    progress = {"desc": f"{name:>6}", "total": options.steps, "initial": len(losses), "unit": "step"}
    bar = tqdm(batches, **progress, disable=parallel.rank() != 0)
    for inputs, targets in bar:
        optimizer.zero_grad()
        losses.append(gradients(model, inputs, targets, options, shared))
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{losses[-1]:.3f}")
        if options.checkpoint is not None and (len(losses) % options.save_every == 0 or len(losses) == options.steps):
            checkpoint.save(path, model, optimizer, schedule, losses, settings)
    return model, losses


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=["strobe", "sdpa"])
    parser.add_argument("--device", default="cpu", help="cpu or cuda; on a GPU the model computes in bfloat16")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=12, help="sequences a step, over all processes")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches that a process splits its share into")
    parser.add_argument("--context", type=int, default=256, help="characters that the model sees")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument(
        "--relative-bias",
        type=int,
        default=0,
        metavar="REACH",
        help="distances that have a learned bias, in every head",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, help="a file to learn instead of the Bible")
    parser.add_argument("--parallel", choices=parallel.METHODS, default="ddp", help="how processes of torchrun share")
    parser.add_argument(
        "--share", choices=("batch", "sequences"), default="batch", help="what each process has a part of"
    )
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="where runs are kept, and go on from")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--json", type=Path, default=Path("losses.json"), help="where the losses are written")
    parser.add_argument("--plot", type=Path, default=Path("losses.svg"), help="where they are drawn")
    options = parser.parse_args()
    if options.share == "sequences" and options.attention != ["strobe"]:
        parser.error("--share sequences needs --attention strobe, which computes them together")
    if options.relative_bias > 0 and not (options.share == "batch" and {*options.attention} <= {*RELATIVE_ATTENTIONS}):
        parser.error("--relative-bias takes --attention strobe and sdpa, and no --share sequences")
    return options


def report(text: Text, model: nn.Module, losses: dict[str, list[float]], options: argparse.Namespace) -> None:
    for name, largest in plot_losses.differences(losses).items():
        print(f"the losses of {name} and {plot_losses.BASE} differ by {max(largest):.1e} at most")
    record: dict[str, Any] = {"device": device_name(options.device), "torch": torch.__version__}
    record |= {name: getattr(options, name) for name in SETTINGS} | {"losses": losses}
    options.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    plot_losses.draw(record, options.plot)
    print(f"{options.json} is written and {options.plot} drawn")
    if parallel.processes() > 1:
        return
    with autocast(options):
        written = model.write(text.tokens[:1, None].to(options.device), 200)
    print("the model writes:\n" + "".join(text.alphabet[index] for index in written[0].tolist()))


def compare(text: Text, options: argparse.Namespace) -> None:
    """Trains with each attention. No model outlives this function, since models hold the process group."""
    losses: dict[str, list[float]] = {}
    for name in options.attention:
        start = time.perf_counter()
        model, losses[name] = train(name, text, options)
        if parallel.rank() == 0:
            print(f"{name}: loss {losses[name][-1]:.4f} after {time.perf_counter() - start:.0f} s")
    if parallel.rank() == 0:
        report(text, model, losses, options)


def main() -> None:
    options = parse()
    text = Text.read(options.text)
    if options.checkpoint is not None:
        options.checkpoint.mkdir(parents=True, exist_ok=True)
    with parallel.process_group(options.device) as options.device:
        compare(text, options)


if __name__ == "__main__":
    main()
