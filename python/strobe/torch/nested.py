# SPDX-License-Identifier: Apache-2.0
"""Nested tensors of the jagged layout as packed sequences: their offsets are the cumulative lengths."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from strobe.torch.checks import check_layouts

_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "max_seqlen_q", "max_seqlen_k")


def attend(
    attention: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any], **returns: bool
) -> Any:
    """attention() of q, k and v [batch, jagged, heads, head_dim]; lse is [batch, heads, jagged].

    Nobody waits for a GPU: lengths stay there, and the longest are told where PyTorch knows them.
    """
    _check(options, q=q, k=k, v=v)
    offsets_q, offsets_k = q.offsets().int(), k.offsets().int()
    bounds = {"cu_seqlens_q": offsets_q, "cu_seqlens_k": offsets_q if k.offsets() is q.offsets() else offsets_k}
    bounds |= {f"seqused_{side}": x.lengths().int() for side, x in (("q", q), ("k", k)) if x.lengths() is not None}
    longest = {"max_seqlen_q": q._maybe_max_seqlen, "max_seqlen_k": k._maybe_max_seqlen}
    bounds |= {name: number for name, number in longest.items() if number is not None}
    results = attention(q.values(), k.values(), v.values(), **bounds, **options, **returns)
    if not isinstance(results, tuple):
        return _like(q, results, 1)
    out, *others = results
    if returns["return_lse"]:
        others[0] = _like(q, others[0], 2)
    return (_like(q, out, 1), *others)


def _like(q: Tensor, values: Tensor, axis: int) -> Tensor:
    """A nested tensor of q's lengths, with them along this axis."""
    lengths = {"lengths": q.lengths(), "min_seqlen": q._maybe_min_seqlen, "max_seqlen": q._maybe_max_seqlen}
    return torch.nested.nested_tensor_from_jagged(values, q.offsets(), jagged_dim=axis, **lengths)


def _check(options: Mapping[str, Any], **tensors: Tensor) -> None:
    for name, x in tensors.items():
        if not (x.is_nested and x.layout == torch.jagged):
            check_layouts(**{name: x})
            raise ValueError(f"{name} is dense: q, k and v are nested tensors of the jagged layout, or none of them is")
        if x.dim() != 4 or x._ragged_idx != 1:
            raise ValueError(
                f"{name} is nested and has shape {list(x.shape)}: it must be [batch, jagged, heads, head_dim]"
            )
    for name in _LENGTHS:
        if options.get(name) is not None:
            raise ValueError(f"{name} is given for nested tensors, which have lengths of their own")
    k, v = tensors["k"], tensors["v"]
    ends = k.offsets(), v.offsets()
    if ends[0] is not ends[1] and (ends[0].is_cuda or not torch.equal(*ends)):
        raise ValueError("k and v are nested tensors of different offsets: make v of k's offsets")
