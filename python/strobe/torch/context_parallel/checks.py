# SPDX-License-Identifier: Apache-2.0
"""What context parallelism accepts, and what to use instead of what it does not."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from strobe._option_list import SCORE_NAMES
from strobe._shapes import wrong_type
from strobe.torch import ops
from strobe.torch.checks import causal_of
from strobe.torch.context_parallel.layout import Layout
from strobe.torch.context_parallel.parts import block_size, is_given

_OF_LAYOUTS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "offset_q", "offset_k")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(choices)}")


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


def check_names(options: Mapping[str, Any]) -> None:
    """TypeError for what is no option, or what the layout says."""
    for name in _OF_LAYOUTS:
        if name in options:
            raise TypeError(f"{name} is given: the sequences are those of shard's cu_seqlens")
    ops.check_names(options)
    for name in ("bias", "sink"):
        if name in options and options[name] is not None and not isinstance(options[name], Tensor):
            raise wrong_type(name, options[name], "a torch.Tensor")


def why_not(scheme: str, options: Mapping[str, Any], heads_q: int, layout: Layout, packed: bool) -> str | None:
    """Why a scheme does not have this call, and what to use instead; None if it has."""
    given = {name for name in SCORE_NAMES if name in options and is_given(options, name)}
    if scheme == "all_to_all":
        return _why_not_all_to_all(given, heads_q, layout.world)
    if "block_mask" in given and not packed:
        size = block_size(options)
        starts = {span.start for rank in range(layout.world) for span in layout.spans(rank) if span.start % size}
        if starts:
            return (
                f'block_mask is given with scheme="gather", and rows of a rank begin at {min(starts)}, no multiple of '
                f'block_size, {size}: give scheme="all_to_all"'
            )
    return _why_not_gather(given, causal_of(options), packed)


def _why_not_all_to_all(given: set[str], heads_q: int, world: int) -> str | None:
    if heads_q % world != 0:
        return f'q has {heads_q} heads, which {world} ranks cannot share equally: give scheme="gather"'
    for name in ("bias", "dropout"):
        if name in given:
            return f'{name} is given with scheme="all_to_all": give scheme="gather"'
    return None


def _why_not_gather(given: set[str], causal: str, packed: bool) -> str | None:
    used = given & {"seqused_q", "seqused_k"}
    positional = causal != "none" or given & {"window", "chunk", "alibi_slopes"}
    instead = 'give scheme="all_to_all"'
    if packed:
        for name in ("bias", "block_mask", "log_length"):
            if name in given:
                return f'{name} is given with packed sequences and scheme="gather": {instead}'
    if used and "log_length" in given:
        return f'log_length is given with {min(used)} and scheme="gather": {instead}'
    if used and positional and causal != "top_left" and given & {"dropout", "chunk"}:
        name = min(given & {"dropout", "chunk"})
        return f'{name} is given with {min(used)}, which move the diagonal: give causal="top_left"'
    return None
