# SPDX-License-Identifier: Apache-2.0
"""Attention under each kind of mask. q, k, v and the result are [batch, seqlen, heads, head_dim]."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import pad

import strobe
from strobe.integrations.kv_cache import Cache, reads_in_place
from strobe.integrations.transformers.mask import Kind, Mask
from strobe.integrations.transformers.mask_functions import OPEN, Rule
from strobe.torch import attention
from strobe.torch.functional import cast, is_eager_inference

Options = dict[str, Any]

_CUTS_MASKS = transformers.__version__.startswith("4.")
"""The attention functions of transformers 4 read as many columns of a mask as there are keys."""


def without_mask(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, position_bias: Tensor | None, options: Options
) -> Tensor:
    """The first query of a causal call is at the first key; keys beyond the queries are room in a static cache."""
    seqlen_q = q.shape[1]
    if causal and seqlen_q > 1:
        k, v = k[:, :seqlen_q], v[:, :seqlen_q]
        options["causal"] = "top_left"
    if position_bias is not None:
        options["bias"] = _as_bias(position_bias[..., : k.shape[1]], q, k)
    return attention(q, k, v, **options)


def described(q: Tensor, k: Tensor, v: Tensor, mask: Mask, position_bias: Tensor | None, options: Options) -> Tensor:
    kind = mask.plan.kind
    if position_bias is not None and kind not in (Kind.RULE, Kind.USED):
        return biased(q, k, v, mask.visible(), position_bias, options)
    if kind is Kind.EXACT:
        bias = mask.derived(("bias", q.dtype), lambda: _as_bias(mask.visible(), q, k))
        return attention(q, k, v, bias=bias, **options)
    keys = k.shape[1] - mask.plan.unused
    k, v = k[:, :keys], v[:, :keys]
    options |= _options_of(mask.plan.rule)
    if position_bias is not None:
        options["bias"] = _as_bias(position_bias[..., :keys], q, k)
    if kind is Kind.RUN:
        return _on_runs(q, k, v, mask, options)
    if kind is Kind.DOCUMENTS:
        return _on_documents(q, k, v, mask, options)
    if kind is Kind.USED:
        options |= {"seqused_q": mask.used_q, "seqused_k": mask.end}
    elif mask.tokens is not None:
        tokens = mask.tokens[:, None, None, :]
        options["bias"] = mask.derived(("bias", q.dtype), lambda: _as_bias(tokens, q, k))
    return attention(q, k, v, **options)


def _options_of(rule: Rule) -> Options:
    options: Options = {}
    if rule.causal:
        options["causal"] = True
    if (rule.left, rule.right) != (OPEN, OPEN):
        options["window"] = (rule.left, rule.right)
    if rule.chunk:
        options["chunk"] = rule.chunk
    return options


def _on_runs(q: Tensor, k: Tensor, v: Tensor, mask: Mask, options: Options) -> Tensor:
    """Keys from `first` to `end` of each sequence: read in place, or packed with the padding as sequences between."""
    if is_eager_inference(q, k, v) and reads_in_place(q, Cache(k, v, leftpad=mask.first)):
        in_place = {"leftpad_k": mask.first, "seqused_k": mask.end, "seqused_q": mask.used_q}
        q, k, v = cast(q, k, v)
        return strobe.attention(q, k, v, **{name: x for name, x in in_place.items() if x is not None}, **options)
    bounds = mask.derived("bounds", lambda: _bounds_of_runs(mask, q.shape[1], k.shape[1]))
    return _on_packed(q, k, v, bounds, options)


def _bounds_of_runs(mask: Mask, seqlen_q: int, seqlen_k: int) -> Options:
    """Three sequences of each: the padding before it, itself, and the padding behind it; of padding nothing is used."""
    first, end = mask.first, mask.end
    assert first is not None
    assert end is not None
    if mask.used_q is None:
        first_q, end_q = torch.zeros_like(first), torch.full_like(first, seqlen_q)
    else:
        first_q, end_q = (first - seqlen_k + seqlen_q).clamp(min=0), mask.used_q
    bounds: Options = {"max_seqlen_q": seqlen_q, "max_seqlen_k": seqlen_k}
    for side, seqlen, begin, stop in (("q", seqlen_q, first_q, end_q), ("k", seqlen_k, first, end)):
        begin, zero = torch.minimum(begin, stop), torch.zeros_like(stop)
        offset = torch.arange(len(stop), device=stop.device, dtype=torch.int32)[:, None] * seqlen
        starts = (torch.stack((zero, begin, stop), 1) + offset).flatten()
        bounds[f"cu_seqlens_{side}"] = pad(starts, (0, 1), value=len(stop) * seqlen)
        bounds[f"seqused_{side}"] = torch.stack((zero, stop - begin, zero), 1).flatten()
    return bounds


def _on_documents(q: Tensor, k: Tensor, v: Tensor, mask: Mask, options: Options) -> Tensor:
    longest = mask.derived("max_seqlen", lambda: -1)
    bounds = {"cu_seqlens_q": mask.cu_seqlens, "cu_seqlens_k": mask.cu_seqlens}
    return _on_packed(q, k, v, bounds | {"max_seqlen_q": longest, "max_seqlen_k": longest}, options)


def check_bounds(given: Tensor | None, mask: Mask | None) -> None:
    """NotImplementedError where a mask beside cu_seq_lens_q says more than causal, window and chunk."""
    if given is not None and (mask is None or mask.plan.kind is not Kind.RULE or mask.plan.unused):
        raise NotImplementedError(
            'attn_implementation="strobe" was given cu_seq_lens_q and a mask that says more than causal, window and '
            "chunk: give one of them"
        )


def flattened(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, causal: bool, given: Mapping[str, Any], options: Options
) -> Tensor:
    """A batch of 1 that holds sequences one after another, whose bounds the caller gave."""
    options |= _options_of(mask.plan.rule) if mask is not None else {"causal": causal}
    cu_seqlens_q = given["cu_seq_lens_q"]
    bounds = {
        "cu_seqlens_q": cu_seqlens_q.int(),
        "cu_seqlens_k": given.get("cu_seq_lens_k", cu_seqlens_q).int(),
        "max_seqlen_q": _bound(given.get("max_length_q")),
        "max_seqlen_k": _bound(given.get("max_length_k")),
    }
    return _on_packed(q, k, v, bounds, options)


def _bound(length: Any) -> int:
    """-1, unknown, where reading it would wait for a GPU."""
    return -1 if length is None or (isinstance(length, Tensor) and length.is_cuda) else int(length)


def _on_packed(q: Tensor, k: Tensor, v: Tensor, bounds: Options, options: Options) -> Tensor:
    batch_and_seqlen = q.shape[:2]
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    o = attention(q, k, v, **bounds, **options)
    result: Tensor = o.unflatten(0, batch_and_seqlen)
    return result


def biased(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, position_bias: Tensor | None, options: Options) -> Tensor:
    """The mask broadcasts to [batch, heads, seqlen_q, seqlen_k]: true where a query sees a key, or added to scores."""
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TypeError(
            f"attention_mask is {str(mask.dtype).removeprefix('torch.')}: it must be bool or floating point"
        )
    if _CUTS_MASKS:
        mask = mask[..., : k.shape[1]]
    bias = _as_bias(mask, q, k)
    if position_bias is not None:
        bias = _as_bias(bias + position_bias, q, k)
    return attention(q, k, v, bias=bias, **options)


def _as_bias(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """[batch or 1, heads_q or 1, seqlen_q, seqlen_k], float32 or q's dtype, which holds 0 and -inf."""
    if mask.dtype == torch.bool:
        if mask.dim() == 4 and mask.stride(2) == 0:
            mask = mask[:, :, :1]
        zero = torch.zeros((), dtype=q.dtype, device=mask.device)
        mask = torch.where(mask, zero, float("-inf"))
    elif mask.dtype not in (torch.float32, q.dtype):
        mask = mask.float()
    mask = mask[(None,) * (4 - mask.dim())]
    mask = mask.expand(-1, -1, q.shape[1] if mask.shape[2] == 1 else -1, k.shape[1] if mask.shape[3] == 1 else -1)
    return mask if mask.stride(-1) == 1 else mask.contiguous()
