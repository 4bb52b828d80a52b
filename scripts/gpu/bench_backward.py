#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times variants of the backward in turns with cuDNN, and with FlashAttention-3 where FA3_LIBRARY names its kernels."""

import argparse
import ctypes
import json
import os
import statistics
from pathlib import Path

import torch
from run_backward import Backward, Options, Variants
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

POINTERS = [
    "q",
    "k",
    "v",
    "o",
    "lse",
    "d_o",
    "dq",
    "dk",
    "dv",
    "dq_accum",
    "d_sum",
    "lse_log2",
    "semaphore",
    "q_descale",
    "k_descale",
    "v_descale",
    "o_accum",
    "lse_accum",
    "dk_accum",
    "dv_accum",
]
NUMBERS = [
    "batch",
    "seqlen_q",
    "seqlen_k",
    "heads",
    "heads_k",
    "head_dim",
    "seqlen_q_rounded",
    "multiprocessors",
    "causal",
    "splits",
]


class Call(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_void_p) for n in POINTERS]
        + [(n, ctypes.c_longlong) for n in NUMBERS]
        + [("stream", ctypes.c_void_p)]
    )


def fa3(library, name, tensors, causal, rounded=0):
    q, k = tensors["q"], tensors["k"]
    call = Call(**{n: t.data_ptr() for n, t in tensors.items()})
    call.batch, call.seqlen_q, call.heads, call.head_dim = q.shape
    call.seqlen_k, call.heads_k = k.shape[1], k.shape[2]
    call.seqlen_q_rounded, call.causal = rounded, int(causal)
    call.multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    function = getattr(library, name)

    def run(keep=tensors):
        call.stream = torch.cuda.current_stream().cuda_stream
        function(ctypes.byref(call))

    return run


def medians(runs, rounds, flops):
    launches = max(2, min(10, int(2e12 / flops)))
    times = {n: [] for n in runs}
    for _ in range(rounds):
        for n, run in runs.items():
            run()
            events = [
                (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(launches)
            ]
            for a, b in events:
                a.record()
                run()
                b.record()
            torch.cuda.synchronize()
            times[n] += [a.elapsed_time(b) for a, b in events]
    return {n: statistics.median(t) for n, t in times.items()}


def cell(variants, names, library, d, causal, s, rounds, parts, cudnn):
    b, h = max(1, 16384 // s), 2048 // d
    q, k, v, do = (torch.randn(b, s, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))

    def z(*shape):
        return torch.zeros(*shape, device="cuda")

    o, lse = torch.empty_like(q), z(b, h, s)
    runs = {}
    block_m = {64: 128, 128: 64 if causal else 80, 256: 64}[d]
    r = -(-s // block_m) * block_m
    t = dict(
        q=q, k=k, v=v, o=o, lse=lse, d_o=do, dq=torch.empty_like(q), dk=torch.empty_like(k), dv=torch.empty_like(v),
        dq_accum=z(b, h, r, d), d_sum=z(b, h, r), lse_log2=z(b, h, r),
        semaphore=torch.zeros(max(64, (r // block_m) * b * h), dtype=torch.int32, device="cuda"),
    )  # fmt: skip
    forward = {n: t[n] for n in ("q", "k", "v", "o", "lse", "semaphore")}
    fa3(library, f"fa3_forward_bf16_{d}_{int(causal)}", forward, causal)()
    runs["fa3"] = fa3(library, f"fa3_backward_bf16_{d}_{int(causal)}", t, causal, r)
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
            w = t[n].float()
            error = (g.float() - w).abs().max().item()
            if not error < 0.05 * w.abs().max().item() + 0.02:
                print("WRONG", name, d, causal, s, n, error)
        runs[name] = call.run
        if parts:
            for i in range(min(4, len(call.launches))):
                runs[f"{name}/{i}"] = lambda call=call, i=i: call.run(i)
    flops = 10 * b * h * s * s * d * (0.5 if causal else 1)
    return medians(runs, rounds, flops), flops


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
    library = ctypes.CDLL(os.environ["FA3_LIBRARY"])
    parts = {int(x) for x in arguments.parts.split(",") if x}
    rows = []
    for d in map(int, arguments.head_dims.split(",")):
        names = [
            n for n in arguments.names.split(",") if n and n.partition("@")[0] in variants.names(d)
        ] or variants.names(d)
        for causal in (False, True):
            for s in map(int, arguments.seqlens.split(",")):
                ms, flops = cell(
                    variants, names, library, d, causal, s, arguments.rounds, s in parts, not arguments.no_cudnn
                )
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
