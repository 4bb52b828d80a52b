# SPDX-License-Identifier: Apache-2.0
"""A few queries over caches whose keys are shared out among ranks: parts with their LSE, and one merge.

Lengths stay on the device, so that a captured CUDA graph can be replayed while they grow.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from strobe import _core
from strobe._forward import forward
from strobe._option_list import OPTIONS, check_options, reject_texts
from strobe.torch.checks import causal_of, check_types, window_of
from strobe.torch.context_parallel.parts import is_given
from strobe.torch.ops import rows

_DRAFTS = 64  # queries of a tree mask
_WHOLE = ("alibi_slopes", "chunk", "bias", "block_mask", "dropout", "log_length", "tree_mask")  # count all keys


class Shard(NamedTuple):
    """Key j of a sequence is of rank (j // interleave) % world, and lies behind those of the rank before it.

    With an ``interleave`` of as many keys as a rank holds, shards are contiguous.
    """

    rank: int
    world: int
    interleave: int = 1

    def count(self, lengths: Tensor) -> Tensor:
        """Of the first so many keys of each sequence, those that are in the shard, int32."""
        turn = self.interleave * self.world
        rest = (lengths % turn - self.rank * self.interleave).clamp(0, self.interleave)
        return (lengths // turn * self.interleave + rest).int()


def shard_attention(
    q: Tensor, k: Tensor, v: Tensor, seqused_k: Tensor, *, shard: Shard | tuple[int, ...], **options: Any
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q over the keys of one shard of a cache; ``strobe.merge`` joins those of all shards.

    q is [batch, seqlen_q, heads_q, head_dim], or packed with cu_seqlens_q and max_seqlen_q; k and v are the shard's
    cache [batch, rows, heads_kv, head_dim], or pools of pages with page_table, and may be of 8 bits with their scales.
    ``seqused_k`` [batch] int32 has the lengths of the whole sequences, with those of the queries, which are at their
    ends; the shard's own follow from it on the device. ``shard`` is (rank, world, interleave). A shard that has no key
    of a sequence gives out = 0 and lse = -inf. A sink counts in the shard of rank 0. More than one query of a sequence
    with a causal mask, at most 64, become a tree mask; a window takes one query. No gradients.

    ValueError and TypeError as strobe.attention; NotImplementedError for options that count keys of other shards.
    """
    check_types(q=q, k=k, v=v, seqused_k=seqused_k)
    given = {name: value for name, value in options.items() if value is not None}
    check_options("strobe.torch.shard_attention", given, [name for name in OPTIONS if name != "seqused_k"])
    reject_texts("strobe.torch.shard_attention", given)
    with torch.no_grad():
        part = shard_options(q, seqused_k, Shard(*shard), given)
        q, k, v = (rows(x.detach()) for x in (q, k, v))
        out, lse = forward(q, k, v, None, True, False, part)
    return out, lse


def shard_options(q: Tensor, seqused_k: Tensor, shard: Shard, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call over one shard, for those of the call over all keys."""
    for name in _WHOLE:
        if name in options and is_given(options, name):
            raise NotImplementedError(f"{name} is given over a shard of the keys: it needs all of them in one cache")
    part = dict(options)
    if shard.rank > 0:
        part.pop("sink", None)
    part["seqused_k"] = shard.count(seqused_k)
    packed = options.get("cu_seqlens_q") is not None
    queries = int(options.get("max_seqlen_q", -1)) if packed else q.shape[1]
    left, right = window_of(part)
    part.pop("window", None)
    causal = causal_of(part)
    part.pop("causal", None)
    if causal == "top_left":
        raise NotImplementedError('causal is "top_left" over a shard of the keys: queries are at their ends, give True')
    if queries == 1:
        return part | _window(seqused_k, shard, left, options)
    if left >= 0 or (right >= 0 and causal == "none"):
        raise NotImplementedError("window is given over a shard of the keys with several queries: give one at a time")
    if causal == "none":
        return part
    if queries < 0 or queries > _DRAFTS:
        raise NotImplementedError(
            f"causal is given over a shard of the keys with {queries} queries of a sequence: at most {_DRAFTS} are "
            "supported, with max_seqlen_q where they are packed"
        )
    return part | {"tree_mask": _tree(q, seqused_k, part["seqused_k"], shard, options)}


def _window(seqused_k: Tensor, shard: Shard, left: int, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The keys that a window hides from the last query as left padding."""
    if left < 0:
        return {}
    if options.get("leftpad_k") is not None:
        raise NotImplementedError("window is given over a shard of the keys with leftpad_k: give one of them")
    return {"leftpad_k": shard.count((seqused_k - 1 - left).clamp(min=0))}


def _tree(q: Tensor, seqused_k: Tensor, counts: Tensor, shard: Shard, options: Mapping[str, Any]) -> Tensor:
    """Bit j of a query: whether it sees key j of its sequence's last n in the shard, where n queries are at the end."""
    ends = options.get("cu_seqlens_q")
    if ends is None:
        number = torch.arange(q.shape[1], device=q.device).expand(q.shape[:2])
        queries = torch.full_like(number, q.shape[1])
        whole, own = (x.long()[:, None] for x in (seqused_k, counts))
    else:
        row = torch.arange(q.shape[0], device=q.device)
        sequence = (torch.searchsorted(ends.long(), row, right=True) - 1).clamp(0, len(seqused_k) - 1)
        number = row - ends.long()[sequence]
        queries = ends.diff().long()[sequence]
        whole, own = (x.long()[sequence] for x in (seqused_k, counts))
    # Of the shard's keys a query sees the first; of the last n those, as bits from 0 on.
    seen = shard.count(whole - queries + number + 1).long() - (own - queries)
    bits = torch.arange(_DRAFTS, device=q.device)
    words = (bits < seen[..., None]) * torch.ones((), dtype=torch.int64, device=q.device).bitwise_left_shift(bits)
    return words.sum(-1).contiguous()


def merged(group: Any, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) over the keys of all ranks, on each."""
    world = distributed.get_world_size(group)
    parts = []
    for own in (out, lse):
        part = own.new_empty((world * own.shape[0], *own.shape[1:]))  # gloo takes no axis of its own for the ranks
        distributed.all_gather_into_tensor(part, own.contiguous(), group=group)
        parts.append(part.view(world, *own.shape))
    result, result_lse = torch.empty_like(out), torch.empty_like(lse)
    _core.merge(list(parts[0]), list(parts[1]), result, result_lse)
    return result, result_lse
