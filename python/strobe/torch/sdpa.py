# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.scaled_dot_product_attention through Strobe."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from strobe import _core, _few_queries
from strobe._frameworks.torch import Torch, without_negative_bit
from strobe.torch import checkpoints
from strobe.torch.functional import attention, cast, is_eager_inference
from strobe.torch.masks import as_bias, batched_mask, check_mask, without_hidden_keys
from strobe.torch.multi_head import with_attention
from strobe.torch.ops import rows


class sdpa(TorchFunctionMode):  # noqa: N801
    """`with sdpa():`

    While it is entered, scaled_dot_product_attention runs on Strobe, with the same arguments and gradients.

    What Strobe does not do raises NotImplementedError, TypeError or ValueError; with ``fallback`` PyTorch does it. What
    torch.utils.checkpoint computes again in the backward runs on Strobe, too, and so do nn.MultiheadAttention and
    nn.Transformer, but where they return weights (``need_weights``). The context is that of the thread that enters it:
    threads that start inside of it enter one of their own.

    A key that a boolean attn_mask hides from all queries of its sample and head may hold anything, NaN included: it
    reaches no result and gets a gradient of 0. A key that some queries see must be finite, since its weight of 0 in the
    other queries is multiplied by what it holds. So must keys behind the -inf of a floating-point mask, which is added.
    """

    def __init__(self, *, fallback: bool = False) -> None:
        super().__init__()
        self.fallback = fallback
        self._carries: list[bool] = []  # for each time that it is entered, whether checkpoints carry it

    def __enter__(self) -> "sdpa":
        # A compiler sees the body of a checkpoint in the mode that it is traced in.
        self._carries.append(not torch.compiler.is_compiling())
        if self._carries[-1]:
            checkpoints.enter(_carried)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._carries.pop():
            checkpoints.leave()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return _ATTENTIONS[self.fallback](*args, **kwargs)
        if func is multi_head_attention_forward and _PLAIN_TYPES.issuperset(types):
            return _MULTI_HEAD[self.fallback](*args, **kwargs)
        return func(*args, **kwargs)


def _carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the mode that this thread is in, if it is in one."""
    mode = next((mode for mode in reversed(_get_current_function_mode_stack()) if isinstance(mode, sdpa)), None)
    if mode is None:
        return function
    fallback = mode.fallback

    @functools.wraps(function)
    def in_mode(*args: Any, **kwargs: Any) -> Any:
        with sdpa(fallback=fallback):
            return function(*args, **kwargs)

    return in_mode


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """query [.., heads_q, seqlen_q, head_dim], key and value likewise; leading axes broadcast."""
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask is given with is_causal: give one of them")
    options: dict[str, Any] = {"scale": scale, "causal": "top_left" if is_causal else False}
    alignment = _alignment(attn_mask)
    if alignment is not None:
        options["causal"] = alignment
        attn_mask = None
    if attn_mask is not None:
        check_mask(attn_mask, query)
    if query.is_nested or key.is_nested or value.is_nested:
        return _nested(query, key, value, attn_mask, options | {"dropout": dropout_p}, enable_gqa)
    dense = query.dim() == 4 and query.shape[0] == key.shape[0] and key.shape[:-1] == value.shape[:-1]
    if dense and not enable_gqa:
        dense = query.shape[1] == key.shape[1]
    if dense and attn_mask is None and not dropout_p and _is_unseen(query, key, value):
        return _eager(query, key, value, options)
    if dropout_p == 1.0:  # which leaves nothing, and divides by what it leaves
        kept = _attention(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)
        return torch.nn.functional.dropout(kept, 1.0)
    q, k, v, leading = query, key, value, tuple(query.shape[:-2])
    if not dense:
        leading = _leading_axes(query, key, value, enable_gqa)
        q, k, v = _batched(query, key, value, leading, enable_gqa)
    if dropout_p:
        options["dropout"] = dropout_p
    if attn_mask is None:
        out = _heads_first(q, k, v, options)
    else:
        out = _masked(q, k, v, batched_mask(attn_mask, [*leading, query.shape[-2], key.shape[-2]]), options)
    return out if len(leading) == 2 else out.reshape(*leading, *out.shape[2:])


def _alignment(mask: Tensor | None) -> str | None:
    """Of a CausalBias, whose own elements are never written. Its module loads PyTorch's compiler, in seconds."""
    if mask is None or type(mask) in _PLAIN_TYPES:
        return None
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if not isinstance(mask, CausalBias):
        return None
    return "top_left" if mask.variant == CausalVariant.UPPER_LEFT else "bottom_right"


def _is_unseen(*tensors: Tensor) -> bool:
    """Nothing records the call, a profiler neither."""
    return is_eager_inference(*tensors) and not torch.autograd._profiler_enabled()


def _nested(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any], enable_gqa: bool
) -> Tensor:
    """Of tensors [batch, heads, jagged, head_dim]."""
    if mask is not None:
        raise NotImplementedError("attn_mask is given for nested tensors: Strobe takes is_causal alone")
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not x.is_nested or x.layout != torch.jagged or x.dim() != 4:
            kind = f"a nested tensor of {x.dim()} axes and {x.layout}" if x.is_nested else "dense"
            raise NotImplementedError(f"{name} is {kind}: all three are dense, or jagged [batch, heads, .., head_dim]")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"query has {query.shape[1]} heads and key {key.shape[1]}: set enable_gqa")
    return _heads_first(query, key, value, options)


def _heads_first(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """Of tensors [batch, heads, seqlen, head_dim]."""
    return attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options).transpose(1, 2)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: dict[str, Any]) -> Tensor:
    """The same with what batched_mask() gave; keys that a boolean mask shows to no query may hold anything."""
    few = mask.dtype == torch.bool and q.shape[2] <= _few_queries.FEW_QUERIES and mask.shape[1:3] == (1, 1)
    if few and q.is_cuda and "dropout" not in options and is_eager_inference(q, k, v):
        out = _by_rows(q, k, v, mask, options["scale"])
        if out is not None:
            return out
    options["bias"] = as_bias(mask, q.shape[2], k.shape[2], cast(q)[0].dtype)
    if mask.dtype == torch.bool:
        if not (q.is_cuda or "dropout" in options) and is_eager_inference(q, k, v):
            out = _heads_first(q, k, v, dict(options))
            # A weight of 0 lets what a key holds through as NaN or not at all. To look is cheaper than to copy K and V.
            if not out.sum().isnan():
                return out
        k, v = without_hidden_keys(mask, k, v)
    return _heads_first(q, k, v, options)


def _by_rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None) -> Tensor | None:
    """Of queries that all see the same keys, without a bias and without copies of K and V; None where that fails."""
    q, k, v = (rows(x.transpose(1, 2)) for x in without_negative_bit(*cast(q, k, v)))
    out: Tensor | None = _few_queries.by_rows(_TORCH, mask, (q, k, v), {"scale": scale})
    return None if out is None else out.transpose(1, 2)


_TORCH = Torch()


def _eager(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    """The same without transposing tensors, which takes PyTorch longer than planning the call."""
    q, k, v = (rows(x) for x in without_negative_bit(*cast(query, key, value)))
    out = _TORCH.empty_output(q, v)
    _core.forward(q, k, v, out, None, None, heads_first=True, **options)
    return out


def _leading_axes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[int, ...]:
    """The output's axes before seqlen_q: all broadcast, but for the heads of grouped queries."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        least = 3 if enable_gqa else 2
        if tensor.dim() < least:
            raise ValueError(f"{name} has rank {tensor.dim()}: it must be {least} or more")
    shapes = [x.shape[:-2] for x in (query, key, value)]
    if enable_gqa:
        heads = query.shape[-3]
        return (*torch.broadcast_shapes(*(shape[:-1] for shape in shapes)), heads)
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError as error:
        heads = [shape[-1] if shape else 1 for shape in shapes]
        if heads[0] != heads[1] and 1 not in heads[:2]:
            raise ValueError(f"query has {heads[0]} heads and key {heads[1]}: set enable_gqa") from error
        raise


def _batched(
    query: Tensor, key: Tensor, value: Tensor, leading: tuple[int, ...], enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors as [batch, heads, seqlen, head_dim]. Key heads that all queries share are not repeated."""
    batch = leading[:-1]
    heads = query.shape[-3] if enable_gqa else (leading[-1] if leading else 1)
    key_heads = max(x.shape[-3] if x.dim() > 2 else 1 for x in (key, value))

    def with_heads(tensor: Tensor, count: int) -> Tensor:
        tensor = tensor.expand(*batch, count, *tensor.shape[-2:])
        return tensor if len(batch) == 1 else tensor.reshape(-1, *tensor.shape[-3:])

    return with_heads(query, heads), with_heads(key, key_heads), with_heads(value, key_heads)


def _attention_or_fallback(*args: Any, **kwargs: Any) -> Tensor:
    try:
        return _attention(*args, **kwargs)
    except (NotImplementedError, TypeError, ValueError):
        return scaled_dot_product_attention(*args, **kwargs)


_PLAIN_TYPES = frozenset({Tensor, Parameter})
_ATTENTIONS = {False: _attention, True: _attention_or_fallback}
_MULTI_HEAD = {fallback: with_attention(attention) for fallback, attention in _ATTENTIONS.items()}
