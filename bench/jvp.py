# SPDX-License-Identifier: Apache-2.0
"""What attention's JVP costs over its forward on a CPU, beside PyTorch's unfused one: jvp.py [OUT.json]

torch.func.jvp of strobe.torch.attention, and of softmax(scale * q k^T) v by PyTorch's operators, by one thread. The
calls of a cell run in turns; the least time of each is what it takes where nothing disturbs it.
"""

import json
import platform
import sys
import time
from itertools import product
from pathlib import Path

import strobe.torch
import torch

ROUNDS = 7


def unfused(q, k, v, causal):
    """Of tensors [batch, seqlen, heads, head_dim]; softmax in their own dtype."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def least_milliseconds(calls):
    times = dict.fromkeys(calls, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:  # the first brings memory and code
                times[name] = min(times[name], 1e3 * (time.perf_counter() - start))
    return times


def cell(dtype, seqlen, head_dim, causal):
    torch.manual_seed(0)
    inputs, tangents = (tuple(torch.randn(1, seqlen, 4, head_dim).to(dtype) for _ in range(3)) for _ in range(2))

    def ours(*x):
        return strobe.torch.attention(*x, causal=causal)

    calls = {
        "forward": lambda: ours(*inputs),
        "jvp": lambda: torch.func.jvp(ours, inputs, tangents),
        "unfused jvp of PyTorch": lambda: torch.func.jvp(lambda *x: unfused(*x, causal), inputs, tangents),
    }
    with torch.no_grad():
        times = least_milliseconds(calls)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "seqlen": seqlen,
        "head_dim": head_dim,
        "causal": causal,
        "ms": {name: round(value, 3) for name, value in times.items()},
        "jvp over forward": round(times["jvp"] / times["forward"], 2),
        "PyTorch over ours": round(times["unfused jvp of PyTorch"] / times["jvp"], 2),
    }


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main():
    torch.set_num_threads(1)
    cells = []
    for case in product((torch.float32, torch.bfloat16), (512, 2048), (64, 128), (False, True)):
        cells.append(cell(*case))
        print(cells[-1], flush=True)
    if len(sys.argv) > 1:
        report = {"machine": processor(), "threads": 1, "torch": torch.__version__, "cells": cells}
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
