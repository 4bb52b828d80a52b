# SPDX-License-Identifier: Apache-2.0
"""How the operators take DTensors: sharded by batch or by heads each device computes its part, and nothing is sent.

Tensors that are sharded otherwise are gathered first, as PyTorch does it for its own operators.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from strobe.torch.ops import TENSOR_NAMES, VALUE_NAMES

Placement = Any
Placements = Callable[[str, Any], Placement]
"""Of a tensor of the call, by its name and its spec."""


def _by_batch(name: str, x: Any) -> Placement:
    if name in ("bias", "block_mask") and x.shape[0] == 1:
        return Replicate()
    return Replicate() if name == "sink" or (name == "alibi_slopes" and x.ndim == 1) else Shard(0)


def _by_heads(name: str, x: Any) -> Placement:
    if name in ("bias", "block_mask"):
        return Shard(1) if x.shape[1] > 1 else Replicate()
    if name in ("alibi_slopes", "sink"):
        return Shard(x.ndim - 1)
    if name == "lse":
        return Shard(x.ndim - 2)
    return Shard(x.ndim - 2) if name in ("q", "k", "v", "o") else Replicate()


def _by_query_heads(name: str, x: Any) -> Placement:
    return Replicate() if name in ("k", "v") else _by_heads(name, x)


_KNOWN = frozenset(
    (
        *("alibi_slopes", "bias", "sink", "block_mask"),
        *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "offset_q", "offset_k"),
    )
)


def _ways(q: Any, k: Any, options: dict[str, Any]) -> list[Placements]:
    """Those that share the call out, beside that of all devices computing all of it."""
    of_texts = options["score"] is not None or options["mask_text"] is not None  # of the whole's batches and heads
    if of_texts or any(x is not None and name not in _KNOWN for name, x in options.items() if name in TENSOR_NAMES):
        return []
    devices = q.mesh.size()
    ways: list[Placements] = []
    if options["cu_seqlens_q"] is None and options["cu_seqlens_k"] is None:
        ways.append(_by_batch)
    if k.shape[-2] % devices == 0:
        ways.append(_by_heads)
    elif k.shape[-2] == 1 and q.shape[-2] % devices == 0:
        ways.append(_by_query_heads)
    return ways


def _replicated(name: str, x: Any) -> Placement:
    return Replicate()


def _options(arguments: tuple[Any, ...]) -> dict[str, Any]:
    names = TENSOR_NAMES + VALUE_NAMES
    return dict(zip(names, arguments[: len(names)], strict=True))


def _inputs(place: Placements, tensors: dict[str, Any], arguments: tuple[Any, ...]) -> list[Placement]:
    """Of all arguments, None for what is no tensor."""
    given = [*tensors.items(), *zip(TENSOR_NAMES, arguments, strict=False)]
    placed = [None if x is None else place(name, x) for name, x in given]
    return placed + [None] * (len(arguments) - len(TENSOR_NAMES))


@register_sharding(torch.ops.strobe.attention.default)
def forward(q: Any, k: Any, v: Any, *arguments: Any) -> Any:
    tensors = {"q": q, "k": k, "v": v}
    shardings = []
    for place in (_replicated, *_ways(q, k, _options(arguments))):
        by_query = Shard(0) if place is _by_batch else place("q", q)
        lse = _lse(by_query, q)
        max_logits = lse if arguments[-1] else Replicate()
        shardings.append(([by_query, lse, max_logits], _inputs(place, tensors, arguments)))
    return shardings


def _lse(by_query: Placement, q: Any) -> Placement:
    """Of lse [batch, heads, seqlen] or [heads, total], and of max_logits [batch, heads]."""
    if by_query == Replicate() or by_query == Shard(0):
        return by_query
    return Shard(q.ndim - 3)


@register_sharding(torch.ops.strobe.attention_backward.default)
def backward(d_o: Any, d_lse: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *arguments: Any) -> Any:
    options = _options(arguments)
    *_, needs_d_bias, needs_d_sink, _ = arguments
    shardings = []
    for place in (_replicated, *_ways(q, k, options)):
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
        inputs = _inputs(place, tensors, arguments)
        d_lse_place = None if d_lse is None else place("lse", lse)
        inputs = [place("o", o), d_lse_place, *inputs]

        def gradient(name: str, x: Any, place: Placements = place) -> Placement:
            """A tensor that devices share has the sum of what each has for it."""
            placement = place(name, x)
            return Partial() if placement == Replicate() and place is not _replicated else placement

        d_bias = gradient("bias", options["bias"]) if needs_d_bias else Replicate()
        d_sink = gradient("sink", options["sink"]) if needs_d_sink else Replicate()
        results = [*(gradient(name, tensors[name]) for name in "qkv"), d_bias, d_sink, Replicate()]
        shardings.append((results, inputs))
    return shardings
