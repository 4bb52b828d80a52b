# SPDX-License-Identifier: Apache-2.0
"""Between some rows of all heads, which a rank has, and all rows of some heads, which it computes.

Source: Jacobs et al., "DeepSpeed Ulysses" (2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import Any

import torch
from torch import Tensor, distributed

from strobe.torch.context_parallel import exchange
from strobe.torch.context_parallel.exchange import rows_first, rows_second
from strobe.torch.context_parallel.layout import Layout, one_behind_another


@dataclass(frozen=True)
class HeadShares:
    """Which heads each rank computes. A key head that several ranks need is a head of each of them."""

    of_queries: tuple[tuple[int, ...], ...]
    of_keys: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=64)
def head_shares(heads_q: int, heads_kv: int, world: int) -> HeadShares:
    """The query heads, shared out as equally as their number allows, and the key heads that they read.

    Where a rank's groups of query heads are not whole, a key head stands as often as it takes for equal groups.
    """
    group, of_queries, of_keys = heads_q // heads_kv, [], []
    for first, stop in pairwise(heads_q * rank // world for rank in range(world + 1)):
        step = gcd(first, stop, group)  # query heads that read one key head
        of_queries.append(tuple(range(first, stop)))
        of_keys.append(tuple(head // group for head in range(first, stop, step)))
    return HeadShares(tuple(of_queries), tuple(of_keys))


@dataclass(frozen=True, eq=False)
class Route:
    """Of one call: how its tensors go to the ranks that compute their heads."""

    group: Any
    layout: Layout
    batched: bool

    @property
    def rank(self) -> int:
        return distributed.get_rank(self.group)


Shares = Sequence[tuple[tuple[int, ...], ...]]
"""Of each tensor, the heads of each rank."""


def _to_heads(route: Route, tensors: Sequence[Tensor], shares: Shares) -> list[Tensor]:
    """All rows of this rank's heads, of tensors [.., rows of this rank, heads, columns]."""
    layout, rank, world = route.layout, route.rank, route.layout.world
    own_places = one_behind_another(layout.places(rank))
    sent, received, results = [], [], []
    for x, heads in zip(tensors, shares, strict=True):
        own = rows_first(x, route.batched)
        whole = own.new_empty((layout.total, *own.shape[1:-2], len(heads[rank]), own.shape[-1]))
        for peer in range(world):
            rows = _select(own, heads[peer])
            sent.append((rows, _only(peer, own_places, world)))
        received.append((whole, [layout.places(peer) for peer in range(world)]))
        results.append(whole)
    exchange.start(route.group, sent, received).wait()
    return [rows_second(x, route.batched) for x in results]


def _to_rows(route: Route, tensors: Sequence[Tensor], shares: Shares, counts: Sequence[int]) -> list[Tensor]:
    """The inverse: this rank's rows of all heads, sums where several ranks have one, which are `counts` in number."""
    layout, rank, world = route.layout, route.rank, route.layout.world
    own_rows, own_places = layout.rows(rank), one_behind_another(layout.places(rank))
    sent, received, arrived = [], [], []
    for x, heads in zip(tensors, shares, strict=True):
        whole = rows_first(x, route.batched)
        sent.append((whole, [layout.places(peer) for peer in range(world)]))
        parts = []
        for peer in range(world):
            part = whole.new_empty((own_rows, *whole.shape[1:-2], len(heads[peer]), whole.shape[-1]))
            received.append((part, _only(peer, own_places, world)))
            parts.append(part)
        arrived.append(parts)
    exchange.start(route.group, sent, received).wait()
    results = []
    for parts, heads, count in zip(arrived, shares, counts, strict=True):
        results.append(rows_second(_joined(parts, heads, count), route.batched))
    return results


def _only(peer: int, places: Any, world: int) -> list[Any]:
    return [places if other == peer else () for other in range(world)]


def _select(x: Tensor, heads: tuple[int, ...]) -> Tensor:
    """Dense, of the heads of [rows, .., heads, columns]."""
    if heads == tuple(range(heads[0], heads[0] + len(heads))):
        return x[..., heads[0] : heads[0] + len(heads), :].contiguous()
    return torch.cat([x[..., head : head + 1, :] for head in heads], dim=-2)


def _joined(parts: Sequence[Tensor], heads: tuple[tuple[int, ...], ...], count: int) -> Tensor:
    """[rows, .., count, columns] from what each rank has of its heads; sums are float32 and in the order of ranks."""
    if sum(map(len, heads)) == count:
        return torch.cat(list(parts), dim=-2)
    shape = (*parts[0].shape[:-2], count, parts[0].shape[-1])
    total = torch.zeros(shape, dtype=torch.float32, device=parts[0].device)
    for part, of_rank in zip(parts, heads, strict=True):
        for index, head in enumerate(of_rank):
            total[..., head, :] += part[..., index, :]
    return total.to(parts[0].dtype)


class ToHeads(torch.autograd.Function):
    """apply(route, shares, *tensors): all rows of this rank's heads of each tensor."""

    @staticmethod
    def forward(ctx: Any, route: Route, shares: Shares, *tensors: Tensor) -> Any:
        ctx.route, ctx.shares, ctx.counts = route, shares, [x.shape[-2] for x in tensors]
        return tuple(_to_heads(route, tensors, shares))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, *_to_rows(ctx.route, gradients, ctx.shares, ctx.counts)


class ToRows(torch.autograd.Function):
    """apply(route, shares, counts, *tensors): this rank's rows of all heads of each tensor. No head is of two ranks."""

    @staticmethod
    def forward(ctx: Any, route: Route, shares: Shares, counts: Sequence[int], *tensors: Tensor) -> Any:
        ctx.route, ctx.shares = route, shares
        return tuple(_to_rows(route, tensors, shares, counts))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, None, *_to_heads(ctx.route, gradients, ctx.shares)
