#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times heads of more than 256 columns, beside a cuBLAS product and a copy of the same run. Medians of CUDA events.

plain   Gemma 4's shapes and 320/256 in both passes, with PyTorch's memory-efficient attention beside the backward
pages   forwards of Gemma 4's shapes over caches, contiguous and in pages
latent  forwards of absorbed latent attention, whose V is a view of K, contiguous and in pages, beside the same as a
        call with qv and, in pages, over rows in e4m3

Usage: wide_heads.py [--only plain pages latent] [--rounds N]
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from strobe_api import Backward, Forward
from timing import captured, copy_by_kernel, launches_for, median_milliseconds

LATENT = (  # sequences, queries and keys of each, heads
    (128, 1, 4096, 128),
    (64, 2, 4096, 128),
    (1, 1024, 4096, 128),
    (128, 1, 4096, 8),
    (128, 1, 4096, 16),
    (128, 1, 4096, 32),
    (2, 1, 65536, 128),
    (8, 1, 8192, 16),
)
CACHES = (  # sequences, queries and keys of each, causal; 16 heads on 4 key heads of 512 columns
    (32, 1, 8192, False),
    (1, 1024, 4096, False),
    (4, 1024, 4096, True),
)
PAGE_SIZES = (None, 64, 16, 1)


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def in_pages(rows, page_size):
    """The rows of each sequence in shuffled pages, and the table that names them."""
    batch, seqlen, *row = rows.shape
    pages = batch * seqlen // page_size
    table = torch.randperm(pages, device="cuda").to(torch.int32)
    cache = torch.empty(pages, page_size, *row, device="cuda", dtype=rows.dtype)
    cache[table.long()] = rows.reshape(pages, page_size, *row)
    return cache, table.reshape(batch, -1)


def keys(batch, seqlen, heads, head_dim, page_size):
    """Rows of keys, and the options of a call that reads them."""
    rows = random(batch, seqlen, heads, head_dim)
    if not page_size:
        return rows, {}
    cache, table = in_pages(rows, page_size)
    return cache, {
        "page_table": table,
        "seqused_k": torch.full((batch,), seqlen, dtype=torch.int32, device="cuda"),
    }


def call(batch, seqlen_q, seqlen_k, heads, heads_kv, head_dims, causal=False, latent=False, page_size=None):
    """A forward, and its operations."""
    head_dim, head_dim_v = head_dims
    q = random(batch, seqlen_q, heads, head_dim)
    k, paged = keys(batch, seqlen_k, heads_kv, head_dim, page_size)
    v = k[..., :head_dim_v] if latent else random(*k.shape[:3], head_dim_v)
    o, lse = q.new_empty(batch, seqlen_q, heads, head_dim_v), torch.empty(batch, heads, seqlen_q, device="cuda")
    forward = Forward(q, k, v, o, lse, causal="bottom_right" if causal else None, **paged)
    flops = 2 * batch * heads * seqlen_q * seqlen_k * (head_dim + head_dim_v)
    if causal:
        flops *= 1 - (seqlen_q - 1) / (2 * seqlen_k)
    return forward.run, flops


def latent_calls(batch, seqlen_q, seqlen_k, heads, page_size):
    """A forward over latent rows, its operations, and by name the same by qv and over rows in e4m3."""
    run, flops = call(batch, seqlen_q, seqlen_k, heads, 1, (576, 512), latent=True, page_size=page_size)
    cache, paged = keys(batch, seqlen_k, 1, 576, page_size)
    q, qv = random(batch, seqlen_q, heads, 64), random(batch, seqlen_q, heads, 512)
    o, lse = torch.empty_like(qv), torch.empty(batch, heads, seqlen_q, device="cuda")
    parts = Forward(q, cache[..., 512:], cache[..., :512], o, lse, qv=qv, **paged)
    peers = {"by qv": captured(parts.run)}
    if page_size:
        stored, scale = cache.to(torch.float8_e4m3fn), torch.ones(1, 1, 1, device="cuda")
        scales = {"k_descale": scale, "v_descale": scale}
        eight_bit = Forward(torch.cat((qv, q), -1), stored, stored[..., :512], o, lse, **paged, **scales)
        peers["in e4m3"] = captured(eight_bit.run)
    return run, flops, peers


def gradients(seqlen, heads, heads_kv, head_dims, causal=False):
    """A backward, its five products' operations, and by name PyTorch's where there are as many key heads."""
    head_dim, head_dim_v = head_dims
    q, k, v = (random(1, seqlen, n, d) for n, d in ((heads, head_dim), (heads_kv, head_dim), (heads_kv, head_dim_v)))
    o, d_o = random(1, seqlen, heads, head_dim_v), random(1, seqlen, heads, head_dim_v)
    lse = torch.empty(1, heads, seqlen, device="cuda")
    mask = "bottom_right" if causal else None
    Forward(q, k, v, o, lse, causal=mask).run()
    backward = Backward(q, k, v, o, lse, d_o, *map(torch.empty_like, (q, k, v)), causal=mask)
    flops = 2 * heads * seqlen**2 * (3 * head_dim + 2 * head_dim_v)
    if causal:
        flops *= 1 - (seqlen - 1) / (2 * seqlen)
    if heads_kv != heads:
        return backward.run, flops, {}
    leaves = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        output = scaled_dot_product_attention(*leaves, is_causal=causal)

    def autograd():
        torch.autograd.grad(output, leaves, d_o.transpose(1, 2), retain_graph=True)

    return backward.run, flops, {"PyTorch": autograd}


def report(name, run, flops, rounds, peers=None, read=0):
    """One line; with the bytes of keys and values that a call of few queries reads, their share of a copy's rate."""
    a, b = random(8192, 8192), random(8192, 8192)
    copy, copied = copy_by_kernel()
    peers = peers or {}
    runs = {"product": captured(lambda: a @ b), "copy": copy, "strobe": captured(run), **peers}
    took = median_milliseconds(runs, rounds, launches_for(flops))
    product, own = 2 * 8192**3 / took["product"] / 1e9, flops / took["strobe"] / 1e9
    of_copy = f", {read / took['strobe'] / (copied / took['copy']):.2f} of a copy" if read else ""
    beside = "".join(f", {peer} {flops / took[peer] / 1e9:.0f}" for peer in peers)
    print(
        f"{name:47} {took['strobe'] * 1e3:9.1f} us {own:6.0f} TFLOP/s, {own / product:5.2f} of cuBLAS{of_copy}{beside}",
        flush=True,
    )


def report_plain(rounds):
    """Both passes of heads with their own K and V."""
    shapes = [(seqlen, causal) for causal in (False, True) for seqlen in (4096, 8192, 16384)]
    for seqlen, causal in shapes:
        name = f"512/512 {seqlen} 16 heads {'causal' if causal else 'full'}"
        report(name, *call(1, seqlen, seqlen, 16, 16, (512, 512), causal), rounds)
    report("512/512 8192 16/4 heads causal", *call(1, 8192, 8192, 16, 4, (512, 512), True), rounds)
    report("320/256 8192 16 heads full", *call(1, 8192, 8192, 16, 16, (320, 256)), rounds)
    for seqlen, causal in shapes:
        run, flops, peers = gradients(seqlen, 16, 16, (512, 512), causal)
        report(f"backward 512/512 {seqlen} 16 heads {'causal' if causal else 'full'}", run, flops, rounds, peers)
    report("backward 512/512 8192 16/4 heads causal", *gradients(8192, 16, 4, (512, 512), True)[:2], rounds)
    report("backward 320/256 8192 16 heads full", *gradients(8192, 16, 16, (320, 256))[:2], rounds)


def pages_text(page_size):
    return f", pages of {page_size}" if page_size else ""


def report_pages(rounds):
    """Caches of heads with their own K and V."""
    for batch, queries, seqlen, causal in CACHES:
        for page_size in PAGE_SIZES:
            name = f"{batch} x {queries} of {seqlen}, 16/4 heads{' causal' if causal else ''}{pages_text(page_size)}"
            run, flops = call(batch, queries, seqlen, 16, 4, (512, 512), causal, page_size=page_size)
            report(name, run, flops, rounds, read=batch * seqlen * 4 * 1024 * 2 if queries == 1 else 0)


def report_latent(rounds):
    """Rows of 576 and 512 columns."""
    for batch, queries, seqlen, heads in LATENT:
        for page_size in PAGE_SIZES:
            name = f"{batch} x {queries} of {seqlen}, {heads} heads{pages_text(page_size)}"
            run, flops, peers = latent_calls(batch, queries, seqlen, heads, page_size)
            report(name, run, flops, rounds, peers, batch * seqlen * 576 * 2 if queries == 1 else 0)


REPORTS = {"plain": report_plain, "pages": report_pages, "latent": report_latent}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=REPORTS, default=list(REPORTS))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.only:
        REPORTS[name](arguments.rounds)


if __name__ == "__main__":
    main()
