# SPDX-License-Identifier: Apache-2.0
"""Keys and values of running sequences in pages, and causal attention over them."""

from dataclasses import dataclass

import strobe
import torch
from torch import Tensor

UNUSED = -1  # in a page table; never read


def pages_for(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


class PagedCache:
    """One pool of pages a layer. A page number stands for the same page in all layers."""

    def __init__(
        self, layers: int, pages: int, page_size: int, heads: int, head_dim: int, *, dtype: torch.dtype, device: str
    ) -> None:
        self.page_size = page_size
        shape = (layers, pages, page_size, heads, head_dim)
        self.k, self.v = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        self.free = list(range(pages))

    def take(self, tokens: int) -> list[int] | None:
        """Pages for so many tokens; None if too few are free."""
        count = pages_for(tokens, self.page_size)
        if count > len(self.free):
            return None
        return [self.free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        self.free += pages


@dataclass
class Step:
    """Where the new tokens of several sequences, packed one after another, belong."""

    page_table: Tensor  # [batch, max_pages] int32
    before: Tensor  # [batch] int32: the tokens that the cache has of each sequence
    after: Tensor  # [batch] int32: and those that it has with the new ones
    cu_seqlens: Tensor  # [batch + 1] int32: where each sequence's new tokens begin
    longest: int  # the most new tokens of a sequence

    @classmethod
    def of(cls, pages: list[list[int]], before: list[int], new: list[int], device: str) -> "Step":
        width = max(map(len, pages))
        table = [row + [UNUSED] * (width - len(row)) for row in pages]
        page_table, start, counts = (torch.tensor(x, dtype=torch.int32, device=device) for x in (table, before, new))
        cu_seqlens = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        return cls(page_table, start, start + counts, cu_seqlens, max(new))

    def positions(self) -> Tensor:
        """[total] int64: of each new token in its sequence."""
        counts = self.after - self.before
        rows = torch.arange(int(self.cu_seqlens[-1]), device=counts.device)
        return rows + torch.repeat_interleave(self.before - self.cu_seqlens[:-1], counts)


def cached_attention(cache: PagedCache, layer: int, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Writes k and v of the new tokens, [1, total, heads, head_dim], to their pages, and returns the attention of q to
    all that their sequences have by then, in q's shape and dtype."""
    k_cache, v_cache = cache.k[layer], cache.v[layer]
    new_q, new_k, new_v = (x[0].to(k_cache.dtype) for x in (q, k, v))
    pages = {"page_table": step.page_table}
    strobe.append(k_cache, v_cache, new_k, new_v, step.before, cu_seqlens_new=step.cu_seqlens, **pages)
    queries = {"cu_seqlens_q": step.cu_seqlens, "max_seqlen_q": step.longest}
    o = strobe.attention(new_q, k_cache, v_cache, causal=True, seqused_k=step.after, **queries, **pages)
    return o[None].to(q.dtype)
