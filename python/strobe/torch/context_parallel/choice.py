# SPDX-License-Identifier: Apache-2.0
"""Which scheme a call takes, and which schemes have its options."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from strobe._option_list import SCORE_NAMES
from strobe.torch.checks import causal_of
from strobe.torch.context_parallel.all_to_all import head_shares
from strobe.torch.context_parallel.layout import Layout
from strobe.torch.context_parallel.model import CallSize, link_of, times
from strobe.torch.context_parallel.parts import CallOptions, block_size, call_options, is_given
from strobe.torch.context_parallel.sequences import Sequences

SCHEMES = ("auto", "gather", "all_to_all", "ring")
_AUTOMATIC = ("gather", "all_to_all")  # a ring takes less memory, and more time


def size_of(sequences: Sequences, q: Tensor, k: Tensor, v: Tensor, options: CallOptions) -> CallSize:
    """The call of the group as numbers; an inner group has shared its heads out."""
    shares = head_shares(q.shape[-2], k.shape[-2], sequences.inner_world)  # the last rank's is the largest
    return CallSize(
        batch=1 if sequences.packed else q.shape[0],
        heads_q=len(shares.of_queries[-1]),
        heads_kv=len(shares.of_keys[-1]),
        head_dim=q.shape[-1],
        head_dim_v=v.shape[-1],
        element_bytes=q.element_size(),
        sight=options.sight,
    )


def scheme_of(
    scheme: str, sequences: Sequences, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]
) -> tuple[str, CallSize]:
    """The scheme of a call, the one that is named or the fastest that has its options, and the call as numbers.

    NotImplementedError if none has.
    """
    given = {name for name in SCORE_NAMES if name in options and is_given(options, name)}
    if sequences.inner is not None:
        _check_inner(q, sequences.inner_world)
    whole = call_options(options, sequences.layout, sequences.batched)
    size = size_of(sequences, q, k, v, whole)
    candidates = _AUTOMATIC if scheme == "auto" else (scheme,)
    refused = {name: _why_not(name, sequences, size, options, given) for name in candidates}
    possible = [name for name in candidates if refused[name] is None]
    if not possible:
        raise NotImplementedError(refused[candidates[0]])
    if len(possible) > 1:
        estimated = times(sequences.layout, size, link_of(sequences.world))
        return min(possible, key=lambda name: estimated[name]), size
    return possible[0], size


def _check_inner(q: Tensor, world: int) -> None:
    reason = _why_not_heads(q.shape[-2], world)
    if reason is not None:
        raise NotImplementedError(f"{reason} within the inner group: give one group alone")


def _why_not(
    scheme: str,
    sequences: Sequences,
    size: CallSize,
    options: Mapping[str, Any],
    given: set[str],
) -> str | None:
    """Why a scheme does not have this call, and what to use instead; None if it has."""
    layout = sequences.layout
    if scheme == "all_to_all":
        reason = _why_not_heads(size.heads_q, layout.world)
        return None if reason is None else f'{reason} with scheme="all_to_all": give scheme="gather"'
    if scheme == "ring" and "row_invariant" in given:
        return 'row_invariant is given with scheme="ring", which merges parts of rows: give scheme="gather"'
    reason = _why_not_parts(given, causal_of(options), sequences)
    if reason is None and "block_mask" in given:
        reason = _why_not_blocks(block_size(options), layout)
    return None if reason is None else f'{reason} with scheme="{scheme}": give scheme="all_to_all"'


def _why_not_heads(heads_q: int, world: int) -> str | None:
    """Of a call whose heads ranks share."""
    return f"q has {heads_q} heads, fewer than there are ranks, {world}," if heads_q < world else None


def _why_not_parts(given: set[str], causal: str, sequences: Sequences) -> str | None:
    """Of a call that is computed in parts of the sequences."""
    used = given & {"seqused_q", "seqused_k"}
    positional = causal != "none" or given & {"window", "chunk", "alibi_slopes"}
    if sequences.packed:
        for name in ("bias", "log_length"):
            if name in given:
                return f"{name} is given with packed sequences"
    if used and "log_length" in given:
        return f"log_length is given with {min(used)}"
    if used and positional and causal != "top_left" and given & {"dropout", "chunk"}:
        return f"{min(given & {'dropout', 'chunk'})} is given with {min(used)}, which move the diagonal,"
    return None


def _why_not_blocks(size: int, layout: Layout) -> str | None:
    starts = {span.start for rank in range(layout.world) for span in layout.spans(rank) if span.start % size}
    if starts:
        return f"block_mask is given, and rows of a rank begin at {min(starts)}, no multiple of block_size, {size},"
    return None
