# SPDX-License-Identifier: Apache-2.0
"""What each scheme computes."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed

from strobe.torch.context_parallel import exchange
from strobe.torch.context_parallel.all_to_all import Route, ToHeads, ToRows, head_shares
from strobe.torch.context_parallel.gather import GatherAttention
from strobe.torch.context_parallel.layout import Layout, begins_of, one_behind_another
from strobe.torch.context_parallel.parts import BY_HEAD, call_options, is_given, key_of, to_device
from strobe.torch.context_parallel.ring import RingAttention
from strobe.torch.context_parallel.sequences import Sequences
from strobe.torch.context_parallel.shared import SharedCall
from strobe.torch.functional import attention

Tensors = tuple[Tensor, Tensor, Tensor]
Result = tuple[Tensor, Tensor | None]
"""out and, where it is asked for, lse."""
Largest: TypeAlias = Tensor | None
"""None, or float32 [batch or sequences, heads], where the largest scores are written that this rank has seen."""
Attend = Callable[[Tensors, dict[str, Any], Largest], Result]


def attend(
    scheme: str, sequences: Sequences, qkv: Tensors, options: dict[str, Any], return_lse: bool, return_max_logits: bool
) -> tuple[Tensor, Tensor | None, Largest]:
    """out, lse and the largest scores, the latter two where they are asked for, of this process's rows."""

    def of_group(qkv: Tensors, options: dict[str, Any], largest: Largest) -> Result:
        return _on_one_level(scheme, sequences, qkv, options, return_lse, largest)

    q, largest = qkv[0], None
    if return_max_logits:
        number = len(sequences.layout.lengths) if sequences.packed else q.shape[0]
        largest = q.new_full((number, q.shape[-2]), float("-inf"), dtype=torch.float32)
    if sequences.inner is None:
        result = of_group(qkv, options, largest)
    else:
        result = _by_heads(sequences.inner_route(), qkv, options, largest, of_group)
    for group in (sequences.group, sequences.inner) if largest is not None else ():
        if group is not None:
            distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=group)
    return *result, largest


def _on_one_level(
    scheme: str, sequences: Sequences, qkv: Tensors, options: dict[str, Any], return_lse: bool, largest: Largest
) -> Result:
    layout = sequences.layout
    if scheme == "all_to_all":

        def whole(qkv: Tensors, options: dict[str, Any], largest: Largest) -> Result:
            lengths: dict[str, Any] = {} if sequences.batched else _packed(layout, qkv[0])
            wanted: Any = {"return_lse": return_lse, "return_max_logits": largest is not None}
            of_group: Any = attention
            results = of_group(*qkv, **wanted, **options | lengths)
            o, *others = results if isinstance(results, tuple) else (results,)
            if largest is not None:
                largest.copy_(others.pop())
            return o, others[0] if return_lse else None

        return _by_heads(Route(sequences.group, layout, sequences.batched), qkv, options, largest, whole)
    of_parts, call = parts_of(scheme, sequences, options)
    o, lse = of_parts.apply(call, largest, *qkv, options.get("bias"), options.get("sink"))
    return o, lse if return_lse else None


def parts_of(scheme: str, sequences: Sequences, options: dict[str, Any]) -> tuple[Any, SharedCall]:
    """Of a scheme that computes parts of the sequences: its autograd.Function, and the call."""
    return GatherAttention if scheme == "gather" else RingAttention, _call(sequences, options)


def _call(sequences: Sequences, options: dict[str, Any]) -> SharedCall:
    """One for all calls that say the same."""

    def make() -> SharedCall:
        whole = call_options(options, sequences.layout, sequences.batched)
        return SharedCall(sequences.group, sequences.rank, sequences.layout, whole)

    key = key_of(options)
    return make() if key is None else sequences.remembered(("call", key), make)


def _packed(layout: Layout, q: Tensor) -> dict[str, Any]:
    ends = to_device(begins_of(layout.lengths), q.device)
    longest = max(layout.lengths)
    return {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": longest, "max_seqlen_k": longest}


def _by_heads(route: Route, qkv: Tensors, options: dict[str, Any], largest: Largest, attend: Attend) -> Result:
    """All rows of this rank's share of the heads, of which attend() computes out and lse, and back."""
    heads_q, heads_kv = qkv[0].shape[-2], qkv[1].shape[-2]
    shares = head_shares(heads_q, heads_kv, route.layout.world)
    own = shares.of_queries[route.rank]
    for name, axis in BY_HEAD.items():
        if name != "bias" and options.get(name) is not None and options[name].shape[axis] == heads_q:
            options[name] = options[name].narrow(axis, own[0], len(own))
    if is_given(options, "dropout"):
        options["dropout_first_head"] = (options.get("dropout_first_head") or 0) + own[0]
        options["dropout_heads"] = options.get("dropout_heads") or heads_q
    tensors, of_heads = list(qkv), [shares.of_queries, shares.of_keys, shares.of_keys]
    if options.get("bias") is not None:  # rows and heads where those of q are
        tensors.append(options["bias"].transpose(1, 2))
        of_heads.append(shares.of_queries if options["bias"].shape[1] == heads_q else ((0,),) * route.layout.world)
    q, k, v, *bias = ToHeads.apply(route, of_heads, *tensors)
    if bias:
        options["bias"] = bias[0].transpose(1, 2)
    o, lse = attend((q, k, v), options, None if largest is None else largest.narrow(1, own[0], len(own)))
    if lse is None:
        return ToRows.apply(route, (shares.of_queries,), (heads_q,), o)[0], None
    columns = lse.transpose(-1, -2).unsqueeze(-1)  # rows and heads where those of o are
    o, columns = ToRows.apply(route, (shares.of_queries,) * 2, (heads_q,) * 2, o, columns)
    return o, columns.squeeze(-1).transpose(-1, -2)


def unshard(sequences: Sequences, y: Tensor, dim: int) -> Tensor:
    """All rows of a tensor of which each process has its own."""
    if sequences.inner is not None:
        y = _whole(sequences.inner, sequences.inner_route().layout, y, dim)
    return _whole(sequences.group, sequences.layout, y, dim)


def _whole(group: Any, layout: Layout, y: Tensor, dim: int) -> Tensor:
    own = y.movedim(dim, 0).contiguous()
    whole = own.new_empty((layout.total, *own.shape[1:]))
    sent = [one_behind_another(layout.places(distributed.get_rank(group)))] * layout.world
    received = [layout.places(peer) for peer in range(layout.world)]
    exchange.start(group, [(own, sent)], [(whole, received)]).wait()
    return whole.movedim(0, dim).contiguous()
