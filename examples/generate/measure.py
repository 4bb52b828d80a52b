# SPDX-License-Identifier: Apache-2.0
"""What the programs share: options, times, and how far rounding may move a result."""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def positive(text: str) -> int:
    """An option's value; argparse reports others."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def parser(description: str | None, batch: int) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--batch", type=positive, default=batch, help="sequences, with one query each")
    result.add_argument("--heads", type=positive, default=32, help="of queries")
    result.add_argument("--heads-kv", type=positive, default=8, help="of keys and values")
    result.add_argument("--head-dim", type=positive, default=128)
    result.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    result.add_argument("--page-size", type=positive, default=64, help="keys of a page")
    result.add_argument("--rounds", type=positive, default=7, help="the least time of so many counts")
    return result


def describe(options: argparse.Namespace) -> str:
    heads = f"{options.heads} query heads, {options.heads_kv} key heads of {options.head_dim} dims"
    return f"{options.batch} sequences, {heads}, {options.dtype}"


def milliseconds(calls: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """The least time of each call, which take turns, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in tqdm(range(rounds + 1), desc="measuring", unit="round", disable=None):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(values[1:]) for name, values in times.items()}


def print_table(heads: list[str], rows: list[list[str]]) -> None:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))


def check(
    name: str, merged: Tensor, plain: Tensor, parts: list[Tensor], magnitude: Tensor, score: float, keys: int
) -> None:
    """Ends the program if `merged` and `plain`, [batch, seqlen_q, heads, head_dim] of two calls over the same `keys`,
    differ by more than rounding explains (docs/accuracy.md). `parts` are what was merged, `magnitude` is the sum of
    P |V|, `score` the largest |q| |k| scale."""
    head_dim = merged.shape[-1]
    # In float32, of each call: a score, which moves P and its sum; sums over the keys; the merge.
    roundings = 2 * (2 * (head_dim + 2) * score + 2 * keys + 20)
    magnitude = magnitude.cpu().float()
    bound = roundings * UNIT_ROUNDOFF[torch.float32] * magnitude
    if merged.dtype != torch.float32:
        stored = sum(x.cpu().float().abs() for x in (merged, plain, *parts))
        bound = 1.01 * bound + UNIT_ROUNDOFF[merged.dtype] * stored  # `magnitude` is rounded, too
        on_gpu = int(merged.is_cuda) + int(plain.is_cuda)  # where tensor cores take P in 16 bits
        bound += on_gpu * UNIT_ROUNDOFF[merged.dtype] * magnitude
    error = (merged.cpu().float() - plain.cpu().float()).abs()
    if not (error <= bound).all():
        raise SystemExit(f"{name}: off by {error.max():.1e}, more than rounding explains")
    print(f"{name}: off by {error.max():.1e} at most, {(error / bound).max():.2g} of what rounding may cost")


def largest_score(q: Tensor, k: Tensor) -> float:
    """By the inequality of Cauchy and Schwarz."""
    norms = [x.float().norm(dim=-1).max().item() for x in (q, k)]
    return norms[0] * norms[1] * q.shape[-1] ** -0.5
