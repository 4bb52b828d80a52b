# SPDX-License-Identifier: Apache-2.0
"""float32 on a GPU, whose products are three of tf32 each, beside the CPU engine's: check_float32.py [OUT.json]

Both are compared with float64. The root mean square of the GPU's errors of O, LSE, dQ, dK and dV is at most four times
that of the CPU's, whose arithmetic is float32.
"""

import json
import sys
from itertools import product
from pathlib import Path

import strobe.torch
import torch

LIMIT = 4.0
NAMES = ("o", "lse", "dq", "dk", "dv")


def exact(q, k, v, d_o):
    """O, LSE and the gradients, in float64 by the equations."""
    q, k, v, d_o = (x.double().transpose(1, 2) for x in (q, k, v, d_o))
    scale = q.shape[-1] ** -0.5
    scores = q @ k.mT * scale
    lse = scores.logsumexp(-1)
    p = (scores - lse[..., None]).exp()
    o, d_p = p @ v, d_o @ v.mT
    d_s = p * (d_p - (d_o * o).sum(-1, keepdim=True)) * scale
    return [o.transpose(1, 2), lse, *(x.transpose(1, 2) for x in (d_s @ k, d_s.mT @ q, p.mT @ d_o))]


def computed(device, q, k, v, d_o):
    inputs = [x.to(device).requires_grad_() for x in (q, k, v)]
    o, lse = strobe.torch.attention(*inputs, return_lse=True)
    gradients = torch.autograd.grad(o, inputs, d_o.to(device))
    return [x.detach() for x in (o, lse, *gradients)]


def root_mean_square(x):
    return x.square().mean().sqrt().item()


def errors(device, inputs, wanted):
    found = computed(device, *inputs)
    return [root_mean_square(x.double().cuda() - y) for x, y in zip(found, wanted, strict=True)]


def main():
    cells, failed = [], []
    for seqlen, head_dim, scale, offset in product((2048, 300), (64, 128), (1, 4), (0, 2)):
        torch.manual_seed(0)
        q, k, v, d_o = (torch.randn(1, seqlen, 4, head_dim) for _ in range(4))
        inputs = (q * scale, k, v + offset, d_o)
        wanted = exact(*(x.cuda() for x in inputs))
        ours, cpu = (errors(device, inputs, wanted) for device in ("cuda", "cpu"))
        ratios = {name: round(x / y, 2) for name, x, y in zip(NAMES, ours, cpu, strict=True)}
        cell = {"seqlen": seqlen, "head_dim": head_dim, "q times": scale, "v plus": offset}
        cells.append({**cell, "rms error over the CPU's": ratios, "rms error": dict(zip(NAMES, ours, strict=True))})
        failed += [f"{name} {ratio} in {cell}" for name, ratio in ratios.items() if not ratio <= LIMIT]
        print(*(f"{key} {value}" for key, value in cell.items()), ratios)
    if len(sys.argv) > 1:
        report = {"device": torch.cuda.get_device_name(), "limit": LIMIT, "cells": cells}
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")
    if failed:
        sys.exit("beyond the limit: " + "; ".join(failed))


if __name__ == "__main__":
    main()
