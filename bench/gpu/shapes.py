#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the forward where the paper's table has no cell: short sequences, lengths that are no multiple of a tile,
grouped heads, packed sequences of unequal length, and few queries of grouped heads. The peers are PyTorch's cuDNN and
FlashAttention-2, in turns with Strobe on the same tensors; medians of CUDA events.

Usage: shapes.py [--rounds N]
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from strobe_api import Forward
from timing import captured, median_milliseconds


def microseconds(runs, rounds):
    return {name: 1e3 * time for name, time in median_milliseconds(runs, rounds, launches=10).items()}


def sdpa(backend, q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def run():
        with sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
            )

    return run


def equal_lengths(seqlen, heads, heads_kv, head_dim, causal, rounds):
    """Sequences of one length, 16,384 tokens in all or the next smaller number."""
    launches = 8
    batch = 16384 // seqlen
    q = torch.randn(batch, seqlen, heads, head_dim, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, seqlen, heads_kv, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    o, lse = torch.empty_like(q), torch.empty(batch, heads, seqlen, device="cuda")
    runs = {
        "strobe": Forward(q, k, v, o, lse, causal="bottom_right" if causal else None).run,
        "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
        "flash_attention_2": sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal),
    }
    took = microseconds({name: captured(run, launches) for name, run in runs.items()}, rounds)
    flops = 4 * batch * heads * head_dim * seqlen * seqlen * (0.5 if causal else 1)
    speeds = "  ".join(
        f"{name} {time / launches:7.1f} us {flops * launches / time / 1e6:5.0f} TFLOP/s" for name, time in took.items()
    )
    print(
        f"{batch:4} x {seqlen:<6}d{head_dim:<4}{heads}/{heads_kv} heads {'causal' if causal else 'full':7} {speeds}",
        flush=True,
    )


def skewed_lengths(sequences, total, seed=0):
    """Log-normal lengths (sigma 1), of which the longest is as likely first as last."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.randn(sequences, generator=generator).exp()
    return (shares / shares.sum() * total).long().clamp(min=1).tolist()


def packed_sequences(head_dim, causal, rounds):
    lengths = skewed_lengths(64, 32768)
    heads, total, longest = 2048 // head_dim, sum(lengths), max(lengths)
    cu_seqlens = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    q, k, v = (torch.randn(total, heads, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o, lse = torch.empty_like(q), torch.empty(heads, total, device="cuda")
    forward = Forward(
        q,
        k,
        v,
        o,
        lse,
        causal="bottom_right" if causal else None,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
    )

    def flash_attention_2():
        torch.ops.aten._flash_attention_forward(
            q, k, v, cu_seqlens, cu_seqlens, longest, longest, 0.0, causal, return_debug_mask=False
        )

    took = microseconds({"strobe": forward.run, "flash_attention_2": flash_attention_2}, rounds)
    flops = 4 * heads * head_dim * sum(n * n for n in lengths) * (0.5 if causal else 1)
    speeds = "  ".join(f"{name} {flops / time / 1e6:5.0f} TFLOP/s" for name, time in took.items())
    print(
        f"packed   d{head_dim:<4}{'causal' if causal else 'full':7} 64 sequences, longest {longest}: {speeds}",
        flush=True,
    )


def few_queries(group, seqlen_q, seqlen_k, rounds):
    batch, heads_kv, head_dim = 32, 8, 128
    q = torch.randn(batch, seqlen_q, heads_kv * group, head_dim, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, seqlen_k, heads_kv, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    forward = Forward(q, k, v, torch.empty_like(q), causal="bottom_right")

    def flash_attention_2():
        torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, seqlen_q, seqlen_k, 0.0, True, return_debug_mask=False
        )

    took = microseconds({"strobe": forward.run, "flash_attention_2": flash_attention_2}, rounds)
    bytes_read = 2 * 2 * k.numel()
    speeds = "  ".join(f"{name} {time:7.1f} us" for name, time in took.items())
    print(
        f"grouped  {group:2} heads a key head, {seqlen_q:4} queries, {seqlen_k} keys: {speeds}"
        f"  (strobe reads keys at {bytes_read / took['strobe'] / 1e6:.2f} TB/s)",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for head_dim in (64, 128, 256):
        heads = 2048 // head_dim
        for seqlen in (64, 128, 256):
            for causal in (False, True):
                equal_lengths(seqlen, heads, heads, head_dim, causal, rounds)
        for seqlen in (1000, 3000, 5000):
            equal_lengths(seqlen, heads, heads, head_dim, True, rounds)
    for seqlen in (2048, 4096, 8192):
        equal_lengths(seqlen, 32, 8, 128, True, rounds)
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            packed_sequences(head_dim, causal, rounds)
    for group in (1, 4, 8):
        for seqlen_q in (1, 4, 16, 64, 100, 200):
            few_queries(group, seqlen_q, 4096, rounds)


if __name__ == "__main__":
    main()
