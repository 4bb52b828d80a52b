# SPDX-License-Identifier: Apache-2.0
"""One step over a cache that is partly in host memory: the CPU engine attends over the old pages there, the GPU over
the recent keys, and both results are merged; measured against copying the pages to the GPU first.

    python examples/generate/hybrid.py --old 32768 --recent 4096

Without a GPU both parts run on the CPU engine, and the copy is not measured.
"""

import argparse
from dataclasses import dataclass

import strobe
import torch
from measure import DTYPES, check, describe, largest_score, milliseconds, parser, positive, print_table
from torch import Tensor

HYBRID, COPIED = "in two parts, merged", "old pages copied first"

Part = tuple[Tensor, Tensor]
"""o [batch, 1, heads, head_dim] and lse [batch, heads, 1]."""


@dataclass
class HybridCache:
    """Of every sequence its old keys and values in pages in host memory, and its recent ones contiguous on the GPU."""

    old_k: Tensor  # [num_pages, page_size, heads_kv, head_dim]
    old_v: Tensor
    page_table: Tensor  # [batch, max_pages] int32
    old_lengths: Tensor  # [batch] int32
    recent_k: Tensor  # [batch, seqlen, heads_kv, head_dim]
    recent_v: Tensor
    recent_lengths: Tensor  # [batch] int32, there as well

    def old_part(self, q: Tensor) -> Part:
        """By the CPU engine; q is in host memory."""
        lengths = {"page_table": self.page_table, "seqused_k": self.old_lengths}
        return strobe.attention(q, self.old_k, self.old_v, return_lse=True, **lengths)

    def recent_part(self, q: Tensor) -> Part:
        lengths = {"seqused_k": self.recent_lengths}
        return strobe.attention(q, self.recent_k, self.recent_v, return_lse=True, **lengths)

    def copied_part(self, q: Tensor) -> Part:
        """The old part by the GPU, once the pages are there; the time of the copy is that of the bus."""
        table, lengths = (x.to(q.device, non_blocking=True) for x in (self.page_table, self.old_lengths))
        k, v = (
            x.to(q.device, non_blocking=True)[table.long()].flatten(1, 2)  # contiguous sequences
            for x in (self.old_k, self.old_v)
        )
        return strobe.attention(q, k, v, return_lse=True, seqused_k=lengths)

    def attention(self, q: Tensor) -> Tensor:
        """Over all keys, both engines at work at once; q and the result are where the recent keys are."""
        host_q = q.cpu()  # before the GPU's part is queued, or it would wait for that
        recent = self.recent_part(q)
        o, lse = (x.to(q.device, non_blocking=True) for x in self.old_part(host_q))
        return strobe.merge([(o, lse), recent])[0]

    def attention_on_copies(self, q: Tensor) -> Tensor:
        return strobe.merge([self.copied_part(q), self.recent_part(q)])[0]

    def copied_bytes(self) -> int:
        return self.old_k.nbytes + self.old_v.nbytes


def cache_of(options: argparse.Namespace, device: str) -> HybridCache:
    """Of sequences that are as long as the options say, or up to an eighth shorter."""
    heads, dtype = (options.heads_kv, options.head_dim), DTYPES[options.dtype]
    pages = -(-options.old // options.page_size)
    pools = [torch.randn(options.batch * pages, options.page_size, *heads).to(dtype) for _ in range(2)]
    recent = [torch.randn(options.batch, options.recent, *heads).to(dtype) for _ in range(2)]
    pools[1] += 1  # so that it shows how much each part counts
    recent[1] -= 1
    table = torch.randperm(options.batch * pages).int().view(options.batch, pages)
    old, new = (
        length - torch.randint(length // 8 + 1, (options.batch,)).int() for length in (options.old, options.recent)
    )
    if device != "cpu":
        pools = [x.pin_memory() for x in pools]  # from where a copy is fastest
    return HybridCache(*pools, table, old, *(x.to(device) for x in (*recent, new)))


def one_call(cache: HybridCache, q: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over all keys by the CPU engine, one sequence at a time, and the sum of P |V|."""
    results = []
    for b, (old, recent) in enumerate(zip(cache.old_lengths.tolist(), cache.recent_lengths.tolist(), strict=True)):
        row = cache.page_table[b].long()
        k, v = (
            torch.cat([pool[row].flatten(0, 1)[:old], part[b, :recent].cpu()])[None]
            for pool, part in ((cache.old_k, cache.recent_k), (cache.old_v, cache.recent_v))
        )
        results.append([strobe.attention(q[b : b + 1], k, x) for x in (v, v.abs())])
    plain, magnitude = (torch.cat(x) for x in zip(*results, strict=True))
    return plain, magnitude


def parse() -> argparse.Namespace:
    arguments = parser(__doc__, batch=4)
    arguments.add_argument("--old", type=positive, default=8192, help="keys of a sequence in host memory")
    arguments.add_argument("--recent", type=positive, default=1024, help="keys of a sequence on the GPU")
    return arguments.parse_args()


def main() -> None:
    options = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and options.dtype == "float32":
        raise SystemExit("--dtype float32: the GPU engine takes 16-bit tensors")
    torch.manual_seed(0)
    cache = cache_of(options, device)
    q = torch.randn(options.batch, 1, options.heads, options.head_dim, device=device).to(DTYPES[options.dtype])
    print(f"{describe(options)}\nkeys of each: {options.old:,} old ones in host memory, {options.recent:,} recent ones")

    plain, magnitude = one_call(cache, q.cpu())
    score = max(largest_score(q.cpu(), k.cpu()) for k in (cache.old_k, cache.recent_k))
    parts = [cache.old_part(q.cpu())[0], cache.recent_part(q)[0]]
    calls = {HYBRID: lambda: cache.attention(q), COPIED: lambda: cache.attention_on_copies(q)}
    for name, call in calls.items():
        check(name, call(), plain, parts, magnitude, score, options.old + options.recent)
    if device == "cuda":
        print(f"the recent ones are on {torch.cuda.get_device_name()}")
    else:
        print("there is no GPU: both parts run on the CPU engine, and no copy is measured")
        calls = {HYBRID: calls[HYBRID]}
        calls |= {"the old part": lambda: cache.old_part(q)[0], "the recent part": lambda: cache.recent_part(q)[0]}
    heads = ["", "ms"]
    rows = [[name, f"{time:.2f}"] for name, time in milliseconds(calls, options.rounds).items()]
    if device == "cuda":
        heads.append("MB over the bus")
        lse_bytes = 4 * options.batch * options.heads
        for row, crossed in zip(rows, (2 * q.nbytes + lse_bytes, cache.copied_bytes()), strict=True):
            row.append(f"{crossed / 1e6:.1f}")
    print_table(heads, rows)


if __name__ == "__main__":
    main()
