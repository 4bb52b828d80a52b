# SPDX-License-Identifier: Apache-2.0
"""What context parallelism accepts, and what to use instead of what it does not."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from strobe._mask_argument import MASK_AXES
from strobe._option_list import reject_texts
from strobe._shapes import wrong_type
from strobe.torch import ops
from strobe.torch.context_parallel.layout import Layout

_OF_LAYOUTS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "offset_q", "offset_k")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(choices)}")


def check_group(group: Any, settings: Any) -> tuple[int, int]:
    """This process's rank and the number of ranks. ValueError if the settings differ among them.

    The first exchange of a group must be one of all ranks, as this is; later ones leave out those that have no rows.
    """
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    if rank < 0:
        raise ValueError("this process is not in the group: make a ContextParallel on the group's ranks alone")
    of_ranks: list[Any] = [None] * world
    distributed.all_gather_object(of_ranks, settings, group=group)
    if len(set(of_ranks)) > 1:
        raise ValueError(f"the ranks' layouts and schemes differ: {of_ranks}")
    return rank, world


def lengths_of(cu_seqlens: Tensor | Sequence[int], total: int) -> tuple[int, ...]:
    """Of packed sequences, whose rows are `total` together."""
    ends = [int(end) for end in (cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor | np.ndarray) else cu_seqlens)]
    if len(ends) < 2 or ends[0] != 0 or any(a > b for a, b in pairwise(ends)):
        raise ValueError(f"cu_seqlens is {ends}: it must begin with 0, and no end may be before the one before it")
    if ends[-1] != total:
        raise ValueError(f"cu_seqlens ends with {ends[-1]}, but there are {total} rows: it must end with their number")
    return tuple(b - a for a, b in pairwise(ends))


def check_rows(name: str, rows: int, layout: Layout, rank: int) -> None:
    if rows != layout.rows(rank):
        raise ValueError(
            f"{name} has {rows} rows, but rank {rank} has {layout.rows(rank)} of the {layout.total} of all: give what "
            "shard returned for tensors of that length"
        )


def check_tensors(q: Tensor, k: Tensor, v: Tensor, layout: Layout, rank: int, packed: bool) -> None:
    """ValueError for tensors that are not this rank's rows; all else attention checks."""
    rank_of = 3 if packed else 4
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != rank_of:
            instead = "[rows, heads, head_dim], as cu_seqlens was given" if packed else "[batch, rows, heads, head_dim]"
            raise ValueError(f"{name} has rank {x.dim()}: it must be {instead}")
        check_rows(name, x.shape[-3], layout, rank)
    heads_q, heads_kv = q.shape[-2], k.shape[-2]
    if heads_kv == 0 or heads_q % heads_kv != 0 or v.shape[-2] != heads_kv:
        raise ValueError(
            f"q has {heads_q} heads, k {heads_kv} and v {v.shape[-2]}: k and v must have the same number, which "
            "divides that of q"
        )


def check_bias(bias: Any, q: Tensor, layout: Layout, packed: bool) -> None:
    """Its rows and keys, of which parts are taken."""
    if bias is None or packed:
        return
    rows_and_keys = (q.shape[1], layout.total)
    if bias.dim() != 4 or tuple(bias.shape[2:]) != rows_and_keys:
        raise ValueError(
            f"bias has shape {list(bias.shape)}: it must be [batch or 1, heads_q or 1, rows, seqlen], which end with "
            f"{rows_and_keys[0]} and {rows_and_keys[1]} here"
        )


def bias_of(mask: Any, q: Tensor, bias: Tensor | None, packed: bool) -> Tensor:
    """A mask of this rank's rows, and a bias beside it, as one bias."""
    if not isinstance(mask, Tensor):
        raise wrong_type("mask", mask, "a torch.Tensor")
    if packed or mask.dim() not in MASK_AXES:
        where = "packed sequences" if packed else f"rank {mask.dim()}"
        raise ValueError(
            f"mask is given with {where}: it must be [batch, seqlen], [batch, rows, seqlen] or [batch, heads_q, rows, "
            "seqlen], of sequences that have a batch axis"
        )
    mask = mask[:, None, None] if mask.dim() == 2 else mask[:, None] if mask.dim() == 3 else mask
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    rows = mask.shape[2] if mask.shape[2] > 1 else q.shape[1]
    mask = mask.expand(-1, -1, rows, -1).contiguous()
    return mask if bias is None else mask + bias


def check_names(options: Mapping[str, Any]) -> None:
    """TypeError for what is no option, or what the layout says."""
    for name in _OF_LAYOUTS:
        if name in options:
            raise TypeError(f"{name} is given: the sequences are those of shard's cu_seqlens")
    ops.check_names(options)
    reject_texts("ContextParallel", options)
    for name in ("bias", "sink"):
        if name in options and options[name] is not None and not isinstance(options[name], Tensor):
            raise wrong_type(name, options[name], "a torch.Tensor")
