#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times variants of the backward in turns with FlashAttention-3, whose kernels FA3_LIBRARY names, and with cuDNN."""

import argparse
import json
from pathlib import Path

import flash_attention_3
import torch
from run_backward import Backward, Options, Variants
from timing import launches_for, median_milliseconds
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def cell(variants, names, d, causal, s, rounds, parts, cudnn):
    b, h = max(1, 16384 // s), 2048 // d
    q, k, v, do = (torch.randn(b, s, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))

    o, lse = torch.empty_like(q), torch.zeros(b, h, s, device="cuda")
    flash_attention_3.forward(q, k, v, o, lse, causal=causal).run()
    wanted = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    runs = {"fa3": flash_attention_3.backward(q, k, v, o, lse, do, **wanted, causal=causal).run}
    runs["fa3"]()
    if cudnn:
        qq, kk, vv = (x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            oo = functional.scaled_dot_product_attention(qq, kk, vv, is_causal=causal)
        runs["cudnn"] = lambda: torch.autograd.grad(oo, (qq, kk, vv), do.transpose(1, 2), retain_graph=True)
    for name in names:
        variant, *options = name.split("@")  # as d256@ds_mb=64@warpgroups=2
        options = {n: int(x) for n, x in (o.split("=") for o in options)}
        got = [torch.full_like(x, float("nan")) for x in (q, k, v)]
        masks = Options(causal="bottom_right" if causal else None)
        call = Backward(variants, variant, q, k, v, o, lse, do, *got, masks, **options)
        call.run()
        torch.cuda.synchronize()
        for n, g in zip(("dq", "dk", "dv"), got, strict=True):
            w = wanted[n].float()
            error = (g.float() - w).abs().max().item()
            if not error < 0.05 * w.abs().max().item() + 0.02:
                print("WRONG", name, d, causal, s, n, error)
        runs[name] = call.run
        if parts:
            for i in range(min(4, len(call.launches))):
                runs[f"{name}/{i}"] = lambda call=call, i=i: call.run(i)
    flops = 10 * b * h * s * s * d * (0.5 if causal else 1)
    return median_milliseconds(runs, rounds, launches_for(flops)), flops


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--seqlens", default="512,1024,4096,16384")
    parser.add_argument("--names", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="512,16384")
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    variants = Variants(arguments.folder)
    parts = {int(x) for x in arguments.parts.split(",") if x}
    rows = []
    for d in map(int, arguments.head_dims.split(",")):
        names = [
            n for n in arguments.names.split(",") if n and n.partition("@")[0] in variants.names(d)
        ] or variants.names(d)
        for causal in (False, True):
            for s in map(int, arguments.seqlens.split(",")):
                ms, flops = cell(variants, names, d, causal, s, arguments.rounds, s in parts, not arguments.no_cudnn)
                rows += [
                    dict(head_dim=d, causal=causal, seqlen=s, name=n, ms=m, tflops=flops / m / 1e9)
                    for n, m in ms.items()
                ]
                print(
                    f"d{d} {'causal' if causal else 'full'} {s}: "
                    + "  ".join(
                        f"{n} {m * 1e3:.0f}us" if "/" in n else f"{n} {flops / m / 1e9:.0f}" for n, m in ms.items()
                    ),
                    flush=True,
                )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
