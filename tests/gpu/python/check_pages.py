#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys and values in pages, on the GPU: the same bits as in a contiguous cache; and how much longer it takes.

Needs a Hopper GPU and PyTorch; STROBE_LIBRARY and STROBE_HEADER as strobe_api.py says. Rows that no key uses hold NaN,
entries of the page table behind the keys numbers of no page.
"""

import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "gpu"))
import checks
import strobe_api
from timing import median_milliseconds

SHAPES = [  # batch, heads_q, heads_kv, seqlen_q, seqlen_k
    (3, 4, 2, 200, 333),
    (2, 8, 1, 1, 1000),
    (1, 16, 2, 5, 4100),
    (1, 4, 4, 2304, 2304),
]
PAGE_SIZES = (1, 7, 8, 16, 24, 64, 80, 128, 129, 256, 257)


def lengths_of(batch, seqlen):
    """The first sequence is the longest; the second has no keys where there is a third."""
    lengths = [seqlen * (batch - b) // batch for b in range(batch)]
    if batch > 2:
        lengths[1] = 0
    return torch.tensor(lengths, dtype=torch.int32, device="cuda")


def paged(rows, lengths, page_size, order, heads_first):
    """Rows [batch, seqlen, heads, head_dim] in pages numbered by `order`, NaN where no key lies."""
    batch, seqlen, heads, head_dim = rows.shape
    max_pages = -(-seqlen // page_size)
    unused = float("nan") if rows.dtype.is_floating_point else 127
    shape = (len(order), heads, page_size, head_dim) if heads_first else (len(order), page_size, heads, head_dim)
    pool = torch.full(shape, unused, dtype=rows.dtype, device="cuda")
    if heads_first:
        pool = pool.transpose(1, 2)
    padded = torch.full((batch, max_pages * page_size, heads, head_dim), unused, dtype=rows.dtype, device="cuda")
    used = torch.arange(seqlen, device="cuda")[None, :] < lengths[:, None]
    padded[:, :seqlen] = torch.where(used[..., None, None], rows, unused)
    pool[order[: batch * max_pages].long()] = padded.view(batch * max_pages, page_size, heads, head_dim)
    return pool


def page_table(lengths, seqlen, page_size, order):
    batch, max_pages = len(lengths), -(-seqlen // page_size)
    table = order[: batch * max_pages].view(batch, max_pages).clone()
    unused = torch.arange(max_pages, device="cuda")[None, :] * page_size >= lengths[:, None]
    return torch.where(unused, -(2**31), table).int()


class Case:
    """A call on pages and the same on a contiguous cache of as many rows."""

    def __init__(self, dtype, head_dim, shape, page_size, heads_first=False, stored=False, **options):
        self.name = f"{dtype} d{head_dim} {shape} pages of {page_size} {options}"
        batch, heads_q, heads_kv, seqlen_q, seqlen_k = shape
        seqlen = -(-seqlen_k // page_size) * page_size
        q = torch.randn(batch, seqlen_q, heads_q, head_dim, device="cuda").to(dtype)
        k, v = (torch.randn(batch, seqlen, heads_kv, head_dim, device="cuda").to(dtype) for _ in "kv")
        if stored:
            k, v = ((32 * x).clamp(-127, 127).to(torch.int8) for x in (k, v))
            options |= {f"{name}_descale": torch.full((1, heads_kv, 1), 1 / 32, device="cuda") for name in "kv"}
        lengths = lengths_of(batch, seqlen_k)
        order = torch.randperm(batch * seqlen // page_size + 3, device="cuda").int()
        k_pages, v_pages = (paged(rows, lengths, page_size, order, heads_first) for rows in (k, v))
        table = page_table(lengths, seqlen, page_size, order)
        self.results = [(torch.full_like(q, 7.0), q.new_full((batch, heads_q, seqlen_q), 7.0).float()) for _ in "pc"]
        self.calls = [
            strobe_api.Forward(q, k_pages, v_pages, *self.results[0], page_table=table, seqused_k=lengths, **options),
            strobe_api.Forward(q, k, v, *self.results[1], seqused_k=lengths, **options),
        ]

    def check(self):
        """False where values are apart by more than a rounding, or, with the same plan, where bits differ."""
        for call in self.calls:
            call.run()
        torch.cuda.synchronize()
        (o, lse), (expected, expected_lse) = self.results
        plans = [[line for line in call.explain().splitlines() if not line.startswith("pages")] for call in self.calls]
        if plans[0] == plans[1]:
            good = torch.equal(o, expected) and torch.equal(lse, expected_lse)
        else:
            good = torch.allclose(o.float(), expected.float(), rtol=2**-6, atol=2**-8) and torch.allclose(
                lse, expected_lse, atol=1e-4
            )
        if not good:
            apart = (o.float() - expected.float()).abs()
            print(f"WRONG {self.name}: o is apart by up to {apart.max():.2e}", flush=True)
        return good


def cases():
    """The arguments of every Case."""
    bf16 = torch.bfloat16
    for page_size in PAGE_SIZES:
        for shape in SHAPES:
            yield (bf16, 128, shape, page_size), {"causal": "bottom_right"}
    for head_dim, page_size in itertools.product((64, 96, 256), (1, 16)):
        for shape in SHAPES[:3]:
            yield (torch.float16, head_dim, shape, page_size), {"heads_first": True}
    for page_size in (1, 12, 16, 256):
        for shape in SHAPES[:3]:
            yield (bf16, 128, shape, page_size), {"causal": "bottom_right", "stored": True}
    for page_size in (5, 16):
        yield (bf16, 128, SHAPES[0], page_size), {"window": (100, 0), "softcap": 10.0}


def check_all():
    good = [Case(*arguments, **options).check() for arguments, options in cases()]
    print(f"{sum(good)} of {len(good)} calls on pages agree with those on contiguous caches", flush=True)
    return all(good)


def measure():
    """Times of pages over those of a contiguous cache with used lengths, all in turns."""
    shapes = [(64, 32, 8, 1, 8192), (16, 32, 8, 1, 32768), (1, 32, 8, 1, 65536), (8, 32, 8, 16, 8192)]
    shapes += [(1, 32, 8, 8192, 8192), (4, 32, 8, 1024, 8192)]
    for shape in shapes:
        batch, heads_q, heads_kv, seqlen_q, seqlen_k = shape
        q = torch.randn(batch, seqlen_q, heads_q, 128, device="cuda").bfloat16()
        o = torch.empty_like(q)
        k, v = (torch.randn(batch, seqlen_k, heads_kv, 128, device="cuda").bfloat16() for _ in "kv")
        lengths = torch.full((batch,), seqlen_k, dtype=torch.int32, device="cuda")
        options = {"causal": "bottom_right", "seqused_k": lengths}
        runs = {"contiguous": strobe_api.Forward(q, k, v, o, **options).run}
        for page_size in (1, 16, 64, 256):
            pages = batch * seqlen_k // page_size
            order = torch.randperm(pages, device="cuda").int()
            pools = (x.view(pages, page_size, heads_kv, 128)[order.argsort()] for x in (k, v))
            table = order.view(batch, -1)
            runs[str(page_size)] = strobe_api.Forward(q, *pools, o, page_table=table, **options).run
        times = median_milliseconds(runs, 10, 5)
        base = times.pop("contiguous")
        print(
            shape,
            f"contiguous {1e3 * base:.1f} us",
            *(f"pages of {name} {time / base:.3f}" for name, time in times.items()),
            sep="  ",
            flush=True,
        )


if __name__ == "__main__":
    checks.main(__doc__, cases(), Case, check_all, measure)
