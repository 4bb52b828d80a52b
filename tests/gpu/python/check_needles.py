#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether attention and caches in 8 bits find a key among 131,072 on the GPU, beside bfloat16.

Usage: check_needles.py [--operands NAME...] [--keys N] [--head-dim N]
Needs a Hopper GPU and PyTorch; STROBE_LIBRARY and STROBE_HEADER as strobe_api.py says. Each query looks for one key, at
depths evenly spread, which its score gives a weight of 0.7 among normal keys (as reference::make_needles): found where
O is more of that key's value than of all others'. All operands must find every key.
"""

import argparse
import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "gpu"))
import strobe_api

QUERIES, HEADS, WEIGHT = 64, 8, 0.7
FAST = {"q_scales": "block", "k_scales": "block", "v_scales": "block", "rotate_v": False, "center_k": False}


def needles(keys, head_dim):
    """(q, k, v, the values that are looked for [1, QUERIES, HEADS, head_dim]), bfloat16."""
    k, v = (torch.randn(1, keys, HEADS, head_dim, device="cuda").bfloat16() for _ in range(2))
    places = (2 * torch.arange(QUERIES, device="cuda") + 1) * keys // (2 * QUERIES)
    wanted = k[:, places].float()
    square = wanted.square().sum(-1, keepdim=True)
    # The other scores are normal, of deviation |q| / sqrt(head_dim) = score / |k|.
    score = torch.zeros_like(square)
    for _ in range(100):
        score = math.log(WEIGHT / (1 - WEIGHT)) + math.log(keys) + 0.5 * score.square() / square
    return (wanted * score * head_dim**0.5 / square).bfloat16(), k, v, v[:, places].float()


def cache_of(k, v, element, largest):
    """k and v appended to caches of `element` with a scale for each sequence and head: arguments of a Forward."""
    scales = [(x.float().abs().amax((1, 3)) / largest)[..., None].contiguous() for x in (k, v)]
    descale = dict(zip(("k_descale", "v_descale"), scales, strict=True))
    caches = [torch.empty(x.shape, dtype=element, device="cuda") for x in (k, v)]
    none = torch.zeros(1, dtype=torch.int32, device="cuda")
    strobe_api.Append(*caches, k, v, none, **descale).run()
    return dict(zip(("k", "v"), caches, strict=True)) | descale


OPERANDS = {
    "bfloat16": lambda q, k, v: {"q": q, "k": k, "v": v},
    "int8": lambda q, k, v: strobe_api.quantize(q, k, v),
    "e4m3": lambda q, k, v: strobe_api.quantize(q, k, v, element="float8_e4m3", **FAST),
    "int8 cache": lambda q, k, v: {"q": q} | cache_of(k, v, torch.int8, 127),
    "e4m3 cache": lambda q, k, v: {"q": q} | cache_of(k, v, torch.float8_e4m3fn, 448),
}


def found_with(name, keys, head_dim):
    torch.manual_seed(0)
    q, k, v, wanted = needles(keys, head_dim)
    o = torch.full(q.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
    strobe_api.Forward(**OPERANDS[name](q, k, v), o=o).run()
    return ((o.float() * wanted).sum(-1) > 0.5 * wanted.square().sum(-1)).sum().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operands", nargs="+", choices=OPERANDS, default=list(OPERANDS))
    parser.add_argument("--keys", type=int, default=131072)
    parser.add_argument("--head-dim", type=int, default=128)
    arguments = parser.parse_args()
    good = True
    for name in arguments.operands:
        found = found_with(name, arguments.keys, arguments.head_dim)
        good &= found == QUERIES * HEADS
        print(f"{name}: {found} of {QUERIES * HEADS} among {arguments.keys} keys", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
