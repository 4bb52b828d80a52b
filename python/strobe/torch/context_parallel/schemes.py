# SPDX-License-Identifier: Apache-2.0
"""The schemes: which one a call takes, and what each computes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from strobe.torch.context_parallel import checks, exchange
from strobe.torch.context_parallel.all_to_all import Route, ToHeads, ToRows, head_shares
from strobe.torch.context_parallel.gather import GatherAttention, GatherCall
from strobe.torch.context_parallel.layout import Layout, begins_of, one_behind_another
from strobe.torch.context_parallel.model import CallSize, times
from strobe.torch.context_parallel.parts import BY_HEAD, call_options, to_device
from strobe.torch.functional import attention

SCHEMES = ("auto", "gather", "all_to_all")


def scheme_of(
    scheme: str, layout: Layout, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any], packed: bool
) -> str:
    """The scheme of a call: the one that is named, or the fastest that has its options.

    NotImplementedError if none has.
    """
    checks.check_names(options)
    candidates = SCHEMES[1:] if scheme == "auto" else (scheme,)
    refused = {x: checks.why_not(x, options, q.shape[-2], layout, packed) for x in candidates}
    possible = [x for x in candidates if refused[x] is None]
    if not possible:
        raise NotImplementedError(refused[candidates[0]])
    if len(possible) == 1:
        return possible[0]
    estimated = times(layout, size_of(layout, q, k, v, options, packed))
    return min(possible, key=lambda x: estimated[x])


def size_of(layout: Layout, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any], packed: bool) -> CallSize:
    """The call as numbers."""
    return CallSize(
        batch=1 if packed else q.shape[0],
        heads_q=q.shape[-2],
        heads_kv=k.shape[-2],
        head_dim=q.shape[-1],
        head_dim_v=v.shape[-1],
        element_bytes=q.element_size(),
        sight=call_options(options, layout, not packed).sight,
    )


def attend(
    scheme: str,
    group: Any,
    layout: Layout,
    qkv: tuple[Tensor, Tensor, Tensor],
    options: dict[str, Any],
    packed: bool,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """out and, where it is asked for, lse, of this rank's rows."""
    if scheme == "gather":
        call = GatherCall(group, layout, call_options(options, layout, not packed))
        return GatherAttention.apply(call, *qkv, options.get("bias"), options.get("sink"))
    return _all_to_all(Route(group, layout, not packed), qkv, options, return_lse)


def _all_to_all(
    route: Route, qkv: tuple[Tensor, Tensor, Tensor], options: dict[str, Any], return_lse: bool
) -> tuple[Tensor, Tensor | None]:
    heads_q, heads_kv = qkv[0].shape[-2], qkv[1].shape[-2]
    shares = head_shares(heads_q, heads_kv, route.layout.world)
    own = shares.of_queries[route.rank]
    for name, axis in BY_HEAD.items():
        if options.get(name) is not None and options[name].shape[axis] == heads_q:
            options[name] = options[name].narrow(axis, own[0], len(own))
    if not route.batched:
        lengths = route.layout.lengths
        ends = to_device(begins_of(lengths), qkv[0].device)
        options |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        options |= {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
    tensors = ToHeads.apply(route, (shares.of_queries, shares.of_keys, shares.of_keys), *qkv)
    if not return_lse:
        o = attention(*tensors, **options)
        return ToRows.apply(route, (shares.of_queries,), (heads_q,), o)[0], None
    o, lse = attention(*tensors, return_lse=True, **options)
    columns = lse.transpose(-1, -2).unsqueeze(-1)  # rows and heads where those of o are
    o, columns = ToRows.apply(route, (shares.of_queries,) * 2, (heads_q,) * 2, o, columns)
    return o, columns.squeeze(-1).transpose(-1, -2)


def unshard(group: Any, layout: Layout, y: Tensor, dim: int) -> Tensor:
    """All rows of a tensor of which each rank has its own."""
    own = y.movedim(dim, 0).contiguous()
    whole = own.new_empty((layout.total, *own.shape[1:]))
    rank = torch.distributed.get_rank(group)
    sent = [one_behind_another(layout.places(rank))] * layout.world
    received = [layout.places(peer) for peer in range(layout.world)]
    exchange.start(group, [(own, sent)], [(whole, received)]).wait()
    return whole.movedim(0, dim).contiguous()
