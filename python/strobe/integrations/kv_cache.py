# SPDX-License-Identifier: Apache-2.0
"""Attention over caches of keys and values: what the drop-ins' flash_attn_with_kvcache and paged calls share.

A cache is [rows, seqlen, heads_kv, head_dim], of which cache_batch_idx may say the rows, or pages [num_pages,
page_size, heads_kv, head_dim] with a page table [batch, max_pages]. Lengths count left padding in.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import strobe
from strobe._query_values import MOST_HEAD_DIM
from strobe.integrations import checks
from strobe.integrations.flash_attention import (
    forward_pass,
    padded_attention,
    reject_unsupported,
    with_query_values,
)
from strobe.torch.ops import rows

_MOST_COLUMNS_OF_GPUS = (MOST_HEAD_DIM, 512)  # of q and k, and of v


@dataclass(frozen=True)
class Cache:
    """Keys and values, and where those of a call's sequences lie among them."""

    k: Tensor
    v: Tensor
    page_table: Tensor | None = None
    batch_idx: Tensor | None = None
    leftpad: Tensor | None = None

    def __post_init__(self) -> None:
        if self.page_table is not None and self.batch_idx is not None:
            raise ValueError("cache_batch_idx is given with a page table, whose rows say as much: give one of them")
        checks.check_int32(**self._indices())
        if self.page_table is not None and self.page_table.dim() != 2:
            raise ValueError(f"page_table has rank {self.page_table.dim()}: it must be [batch, max_pages]")

    @property
    def capacity(self) -> int:
        """Rows that a sequence may have."""
        return self.k.shape[1] * (1 if self.page_table is None else self.page_table.shape[1])

    def first(self, batch: int) -> tuple[Tensor, Tensor]:
        """k and v; of a cache whose entry b is sequence b, the first `batch` entries alone."""
        if self.page_table is None and self.batch_idx is None:
            return self.k[:batch], self.v[:batch]
        return self.k, self.v

    def _indices(self) -> dict[str, Tensor | None]:
        return {"page_table": self.page_table, "leftpad_k": self.leftpad, "cache_batch_idx": self.batch_idx}

    def indices(self) -> dict[str, Tensor]:
        """Those that are given, with dense rows, by their names in Strobe's own calls."""
        return {name: rows(index) for name, index in self._indices().items() if index is not None}


@dataclass(frozen=True)
class Rotary:
    """Tables of rotary embedding, and the positions of the first rows where they are not the cache's lengths."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    seqlens: Tensor | None = None


def lengths_of(cache_seqlens: Tensor | int | None, batch: int, cache: Cache) -> Tensor:
    """int32 [batch]; all that the cache holds where nothing is given."""
    if isinstance(cache_seqlens, Tensor):
        checks.check_int32(cache_seqlens=cache_seqlens)
        checks.check_shape("cache_seqlens", cache_seqlens, (batch,), "[batch]")
        return cache_seqlens
    filled = cache.capacity if cache_seqlens is None else checks.whole("cache_seqlens", cache_seqlens)
    return torch.full((batch,), filled, dtype=torch.int32, device=cache.k.device)


def cache_scales(
    q: Tensor, cache: Cache, batch: int, scales: dict[str, Tensor | None]
) -> tuple[Tensor, dict[str, Tensor]]:
    """q and the options of a cache stored in 8 bits, by q_descale, k_descale and v_descale [batch, heads_kv].

    A float8 q becomes bfloat16, which holds all its values; its scale joins that of K.
    """
    if cache.k.dtype.itemsize > 1:
        reject_unsupported(**scales)
        return q, {}
    checks.check_scales(batch, cache.k.shape[-2], **scales)
    by_head = {
        name: torch.ones((1, 1, 1), device=q.device) if scale is None else scale.unsqueeze(-1)
        for name, scale in scales.items()
    }
    q_descale = by_head.pop("q_descale")
    if q.dtype.itemsize == 1:
        q = q.to(torch.bfloat16)
        by_head["k_descale"] = by_head["k_descale"] * q_descale
    else:
        reject_unsupported(q_descale=scales["q_descale"])
    return q, by_head


def _rows(x: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sequence of each row of x, and which of its rows it is: both [batch, seqlen], or [total] of packed x."""
    if cu_seqlens is None:
        steps = torch.arange(x.shape[1], device=x.device)
        sequence = torch.arange(x.shape[0], device=x.device)
        return sequence[:, None].expand(*x.shape[:2]), steps.expand(*x.shape[:2])
    rows = torch.arange(x.shape[0], device=x.device)
    sequence = torch.searchsorted(cu_seqlens[1:].long(), rows, right=True)
    return sequence, rows - cu_seqlens[sequence]


def positions_of(
    rotary: Rotary,
    lengths: Tensor,
    k: Tensor,
    cu_seqlens_new: Tensor | None,
    q: Tensor,
    cu_seqlens_q: Tensor | None,
    *,
    q_in_order: bool,
) -> tuple[Tensor, Tensor]:
    """Positions of the rows of k and q. FlashAttention counts them through the left padding."""
    first = lengths if rotary.seqlens is None else rotary.seqlens
    sequence, step = _rows(k, cu_seqlens_new)
    sequence_q, step_q = _rows(q, cu_seqlens_q)
    return (first[sequence] + step).int(), (first[sequence_q] + (step_q if q_in_order else 0)).int()


def append(
    cache: Cache,
    new: tuple[Tensor, Tensor],
    lengths: Tensor,
    *,
    q: Tensor,
    rotary: Rotary | None = None,
    q_in_order: bool = True,
    cu_seqlens_new: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    scales: dict[str, Tensor] | None = None,
) -> Tensor:
    """Writes new keys and values behind `lengths` rows of the cache, and gives q, which is rotated with the keys."""
    k, v = (x.detach() for x in new)
    scales = scales or {}
    if k.dtype.itemsize == 1:  # in the cache's units: q's dtype holds them, and a rotation of them, too
        k, v = k.to(q.dtype), v.to(q.dtype)
        scales = {name: torch.ones((1, 1, 1), device=q.device) for name in scales}
    positions = positions_q = None
    if rotary is not None and (cache.leftpad is not None or rotary.seqlens is not None):
        positions, positions_q = positions_of(
            rotary, lengths, k, cu_seqlens_new, q, cu_seqlens_q, q_in_order=q_in_order
        )
    with torch.no_grad():
        turned = strobe.append(
            *(*cache.first(lengths.shape[0]), rows(k), rows(v), rows(lengths)),
            cu_seqlens_new=cu_seqlens_new,
            **cache.indices(),
            positions=positions,
            q=None if rotary is None else rows(q.detach()),
            cu_seqlens_q=None if rotary is None else cu_seqlens_q,
            positions_q=positions_q,
            q_in_order=q_in_order,
            cos=None if rotary is None else rotary.cos,
            sin=None if rotary is None else rotary.sin,
            interleaved=rotary is not None and rotary.interleaved,
            k_descale=scales.get("k_descale"),
            v_descale=scales.get("v_descale"),
        )
    return q if turned is None else turned


@functools.cache
def _is_hopper(device: int) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


def reads_in_place(q: Tensor, cache: Cache) -> bool:
    """Whether the engine of q's device reads this cache where it lies: pages, left padding and chosen entries."""
    if not q.is_cuda:
        return True
    k, v = cache.k, cache.v
    columns = (q.shape[-1], v.shape[-1])
    if any(x % 8 != 0 or x > most for x, most in zip(columns, _MOST_COLUMNS_OF_GPUS, strict=True)):
        return False
    if k.dtype.itemsize > 1 or all(x % 16 == 0 for x in columns):
        return True
    boxes = cache.page_table is None or (k.shape[1] % 8 == 0 and cache.leftpad is None)
    return boxes and _is_hopper(q.device.index)


def gathered(cache: Cache, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """k, v [batch, seqlen, heads_kv, head_dim] without pages and left padding, and the lengths that count.

    For calls that reads_in_place() excludes. No length is read, which would wait for a GPU: seqlen is all that a
    sequence may have, and numbers of pages are clamped.
    """
    if cache.page_table is None and cache.leftpad is None:
        if cache.batch_idx is None:
            return *cache.first(lengths.shape[0]), lengths
        k, v = (x.index_select(0, cache.batch_idx.long()) for x in (cache.k, cache.v))
        return k, v, lengths
    batch, page_size = lengths.shape[0], cache.k.shape[1]
    table = cache.page_table
    if table is None:
        entries = torch.arange(batch, device=lengths.device) if cache.batch_idx is None else cache.batch_idx
        table = entries[:, None]
    first = torch.zeros_like(lengths) if cache.leftpad is None else cache.leftpad
    row = first[:, None] + torch.arange(cache.capacity, device=lengths.device)
    page = table.long().gather(1, (row // page_size).clamp(max=table.shape[1] - 1))
    at = page.clamp(0, cache.k.shape[0] - 1), row % page_size
    return cache.k[at], cache.v[at], lengths - first


def cached_attention(
    q: Tensor, cache: Cache, lengths: Tensor, *, out: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q over the first `lengths` rows of each sequence in the cache."""
    in_place = reads_in_place(q, cache)
    if in_place:
        k, v = cache.first(lengths.shape[0])
        options = options | cache.indices()
    else:
        k, v, lengths = gathered(cache, lengths)
    options = options | {"seqused_k": rows(lengths)}
    if in_place or out is not None:
        return forward_pass(q.detach(), k.detach(), v.detach(), out=out, **options)
    with torch.no_grad():
        return padded_attention(q, k, v, return_lse=True, **options)


def with_cache(
    q: Tensor,
    cache: Cache,
    new: tuple[Tensor | None, Tensor | None],
    *,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_interleaved: bool = True,
    rotary_seqlens: Tensor | None = None,
    cache_seqlens: Tensor | int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    scales: dict[str, Tensor | None] | None = None,
    qv: Tensor | None = None,
    tables_cover_cache: bool = False,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q over a cache of which the first cache_seqlens rows count.

    New keys and values, where they are given, are first written to the cache behind those, in place; with rotary tables
    q and they are rotated to their positions, of which the tables must have as many as the cache where they are to
    cover it. qv adds its products with V to the scores. `options` are Strobe's own.
    """
    k, v = new
    longest = checks.max_seqlen("q", cu_seqlens_q, max_seqlen_q)
    _check_new(new, cache, cache_seqlens, q.shape[1] if longest is None else longest)
    checks.check_int32(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_new, rotary_seqlens=rotary_seqlens)
    rotary = _rotary_of(rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens)
    if rotary is not None and k is None:
        raise ValueError("rotary_cos is given without k and v: what is rotated is what is new")
    if tables_cover_cache and rotary is not None and rotary.cos.shape[0] < cache.capacity:
        raise ValueError(
            f"rotary_cos has {rotary.cos.shape[0]} positions and the cache {cache.capacity} rows for a sequence: "
            "it must have as many or more"
        )
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    lengths = lengths_of(cache_seqlens, batch, cache)
    checks.check_shape("rotary_seqlens", rotary_seqlens, (batch,), "[batch]")
    if k is not None and k.dtype.itemsize > 1:
        checks.check_as("q", q, k=k, v=v)
    scales = scales or dict.fromkeys(("q_descale", "k_descale", "v_descale"))
    q, stored = cache_scales(q, cache, batch, scales)
    if k is not None and v is not None:
        q = append(
            *(cache, (k, v), lengths),
            q=q,
            rotary=rotary,
            # Without a mask along the diagonal all queries are at the position of the first new key.
            q_in_order=bool(options["causal"]) or options.get("window", (-1, -1)) != (-1, -1),
            cu_seqlens_new=cu_seqlens_new,
            cu_seqlens_q=cu_seqlens_q,
            # A scale of q has no part in what is stored.
            scales=stored and cache_scales(q, cache, batch, scales | {"q_descale": None})[1],
        )
        lengths = lengths + (k.shape[1] if cu_seqlens_new is None else cu_seqlens_new.diff().int())
    packing = {} if cu_seqlens_q is None else {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": longest}
    q, k_cache, options = with_query_values(q, cache.k, cache.v, qv, options)
    return cached_attention(q, replace(cache, k=k_cache), lengths, **packing, **stored, **options)


def _check_new(
    new: tuple[Tensor | None, Tensor | None], cache: Cache, cache_seqlens: Tensor | int | None, seqlen_q: int
) -> None:
    """ValueError for new rows that cannot be placed in the cache."""
    k, v = new
    checks.check_pair(k=k, v=v)
    if k is not None and cache_seqlens is None:
        raise ValueError("k is given without cache_seqlens: give the number of rows behind which it is written")
    if k is not None and seqlen_q > cache.capacity:
        raise ValueError(f"q is longer than the cache, which has {cache.capacity} rows for a sequence")


def _rotary_of(cos: Tensor | None, sin: Tensor | None, interleaved: bool, seqlens: Tensor | None) -> Rotary | None:
    """The tables of a call; FlashAttention-3 wants them in q's dtype, float8 among them."""
    checks.check_pair(rotary_cos=cos, rotary_sin=sin)
    if cos is None or sin is None:
        return None
    checks.check_as("rotary_cos", cos, rotary_sin=sin)
    cos, sin = (x.float() if x.dtype.itemsize == 1 else x for x in (cos, sin))
    return Rotary(cos, sin, interleaved, seqlens)
