#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Score and mask texts on a GPU, beside the options that say the same and PyTorch's FlexAttention, in one run: texts.py
[--json FILE] [--only "plain;ALiBi, causal"] [--head-dims 64,128] [--seqlen 4096] [--batch 4] [--heads 16] [--rounds 3]
[--no-flex]

First processes compile every call side by side and leave the kernels in the libraries' caches on disk; then one process
compares the results and measures. bfloat16; medians between CUDA events, in turns. A forward is a replayed CUDA graph,
a backward torch.autograd.grad, without gradients of captures and, where they are learned, with them.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # one process for each call is enough

import strobe.torch
import torch
from text_modifications import Modification, modifications
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from timing import captured, launches_for, median_milliseconds

BLOCK = 128
PASSES = ("forward", "backward", "with gradients")

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of q, k and v, each [batch, seqlen, heads, head_dim]; FlexAttention's are [batch, heads, seqlen, head_dim]."""


def of_option(option: dict[str, Any], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if "cu_seqlens_q" in option:
        return strobe.torch.attention(*(x.flatten(0, 1) for x in (q, k, v)), **option).view_as(q)
    return strobe.torch.attention(q, k, v, **option)


def of_flex(modification: Modification, seqlen: int) -> Attention:
    torch.compiler.reset()
    mask = modification.mask_mod
    blocks = create_block_mask(mask, None, None, seqlen, seqlen, device="cuda") if mask else None
    return partial(torch.compile(flex_attention), score_mod=modification.score_mod, block_mask=blocks)


def libraries(modification: Modification, arguments: argparse.Namespace) -> dict[str, Attention]:
    calls: dict[str, Attention] = {}
    if modification.score or modification.mask:
        calls["text"] = partial(strobe.torch.attention, **modification.text)
    if modification.option is not None:
        calls["option"] = partial(of_option, modification.option)
    if arguments.flex:
        calls["flex"] = of_flex(modification, arguments.seqlen)
    return calls


def visible_share(modification: Modification, seqlen: int) -> float:
    """Of blocks of 128 queries and keys that are not hidden."""
    if modification.mask_mod is None:
        return 1.0
    rows = torch.arange(seqlen, device="cuda")
    zero = torch.zeros((), device="cuda", dtype=torch.int32)
    pairs = modification.mask_mod(zero, zero, rows[:, None], rows[None])
    blocks = pairs.view(seqlen // BLOCK, BLOCK, seqlen // BLOCK, BLOCK).any(3).any(1)
    return blocks.float().mean().item()


class Calls:
    """The passes of each library, run once: by pass and library, and why some are absent."""

    def __init__(
        self, modification: Modification, head_dim: int, arguments: argparse.Namespace, absent: dict[str, str]
    ):
        shape = (arguments.batch, arguments.seqlen, arguments.heads, head_dim)
        tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        self.runs: dict[str, dict[str, Callable[[], Any]]] = {kind: {} for kind in PASSES}
        self.results: dict[str, list[Tensor]] = {}
        self.absent = dict(absent)
        for x in modification.learned:
            x.requires_grad_(False)
        calls = libraries(modification, arguments)
        for name, attention in calls.items():
            self._add(name, attention, tensors, [])
        for x in modification.learned:
            x.requires_grad_()
        for name, attention in calls.items():
            if modification.learned and name != "option":
                self._add(name, attention, tensors, modification.learned)

    def _add(self, name: str, attention: Attention, tensors: list[Tensor], learned: list[Tensor]) -> None:
        kind = "with gradients" if learned else "backward"
        if f"{name} {kind}" in self.absent:
            return
        own = [x.transpose(1, 2).contiguous() if name == "flex" else x.clone() for x in tensors]
        inputs, d_o = [x.requires_grad_() for x in own[:3]], own[3]
        try:
            o = attention(*inputs)
            backward = partial(torch.autograd.grad, o, inputs + learned, d_o, retain_graph=True)
            gradients = backward()
            if not learned:
                with torch.no_grad():
                    self.runs["forward"][name] = captured(partial(attention, *inputs))
                results = [o.detach(), *gradients]
                self.results[name] = [x.transpose(1, 2) for x in results] if name == "flex" else results
        except Exception as error:  # FlexAttention raises the compiler's errors, of many types
            if name != "flex":
                raise
            self.absent[f"{name} {kind}"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        else:
            self.runs[kind][name] = backward

    def check(self, title: str) -> None:
        wanted = self.results.get("text", self.results.get("option"))
        for name, result in self.results.items():
            for i, (x, y) in enumerate(zip(result, wanted, strict=True)):
                error = (x.float() - y.float()).abs().max() / y.float().abs().max()
                if not error < 0.05:  # NaN fails, too
                    raise SystemExit(f"{title}: {name} and Strobe differ by {error:.3f} of the largest of result {i}")


def compile_calls(name: str, head_dim: int, arguments: argparse.Namespace) -> dict[str, str]:
    """In a process of its own: what is absent, and why."""
    warnings.filterwarnings("ignore")
    absent: dict[str, str] = {}
    every = modifications(arguments.batch, arguments.heads, arguments.seqlen)
    return Calls(every[name], head_dim, arguments, absent).absent


def compile_side_by_side(cells: list[tuple[str, int]], arguments: argparse.Namespace) -> list[dict[str, str]]:
    workers = min(len(cells), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(compile_calls, *zip(*cells, strict=True), [arguments] * len(cells)))


def measure(
    modification: Modification, head_dim: int, arguments: argparse.Namespace, absent: dict[str, str]
) -> dict[str, Any]:
    calls = Calls(modification, head_dim, arguments, absent)
    calls.check(f"{modification.name}, head_dim {head_dim}")
    share = visible_share(modification, arguments.seqlen)
    flops = 4 * arguments.batch * arguments.heads * arguments.seqlen**2 * head_dim * share
    row: dict[str, Any] = {"head_dim": head_dim, "name": modification.name, "visible": round(share, 4)}
    for kind, runs in calls.runs.items():
        work = flops if kind == "forward" else 2.5 * flops
        times = median_milliseconds(runs, arguments.rounds, launches_for(work)) if runs else {}
        row |= {kind: {name: round(1e3 * time, 1) for name, time in times.items()}} if times else {}
    return row | ({"absent": calls.absent} if calls.absent else {})


def show(row: dict[str, Any]) -> str:
    cells = [f"d{row['head_dim']}", row["name"], f"{100 * row['visible']:.0f}%"]
    for kind in PASSES:
        times = row.get(kind, {})
        own = times.get("text", times.get("option"))
        cells += [f"{times[name]:.0f}" if name in times else "" for name in ("text", "option", "flex")]
        cells.append(f"{times['flex'] / own:.2f}" if "flex" in times else "")
    return "| " + " | ".join(cells) + " |"


def summary(rows: list[dict[str, Any]]) -> str:
    """Of texts, or options where nothing is written, in times FlexAttention's speed."""
    lines = []
    for kind in PASSES:
        times = [row[kind] for row in rows if "flex" in row.get(kind, {})]
        ratios = [x["flex"] / x.get("text", x.get("option")) for x in times]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            lines.append(
                f"{kind}: {mean:.2f} times FlexAttention's speed by geometric mean, at least {min(ratios):.2f}"
            )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows are written")
    parser.add_argument("--only", help="names of modifications, separated by semicolons; all unless given")
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--seqlen", type=int, default=4096, help=f"a multiple of {BLOCK}")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-flex", dest="flex", action="store_false", help="Strobe alone")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    warnings.filterwarnings("ignore", category=UserWarning)
    every = modifications(arguments.batch, arguments.heads, arguments.seqlen)
    names = arguments.only.split(";") if arguments.only else list(every)
    if unknown := [name for name in names if name not in every]:
        raise SystemExit(f"--only {';'.join(unknown)}: the names are {'; '.join(every)}")
    cells = [(name, head_dim) for head_dim in map(int, arguments.head_dims.split(",")) for name in names]
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    record |= {name: getattr(arguments, name) for name in ("batch", "seqlen", "heads")} | {"rows": []}
    absent = compile_side_by_side(cells, arguments)
    print(
        f"{record['device']}; microseconds of the text, the option and FlexAttention, and times FlexAttention's speed"
    )
    print(f"| | | visible |{''.join(f' {kind} | option | flex | |' for kind in PASSES)}")
    for (name, head_dim), missing in zip(cells, absent, strict=True):
        row = measure(every[name], head_dim, arguments, missing)
        record["rows"].append(row)
        print(show(row), flush=True)
        if arguments.json:  # after each row, so that a run that is cut leaves what it has
            arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(summary(record["rows"]))


if __name__ == "__main__":
    main()
