# SPDX-License-Identifier: Apache-2.0
"""The attention of a layer of transformers: its mask becomes options of Strobe's attention."""

from typing import Any

import torch
from torch import Tensor

from strobe.integrations.transformers import compute
from strobe.integrations.transformers.mask import Kind, Mask
from strobe.torch.scales import scaled

_WITHOUT_EFFECT = frozenset(
    {
        *("cache_position", "position_ids", "seq_idx", "sliding_window"),  # the mask has said it
        *("num_items_in_batch", "output_hidden_states", "output_router_logits", "return_dict", "use_cache"),
        *("labels", "logits_to_keep"),
    }
)
_BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | Tensor | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    deterministic: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [batch, heads_q, seqlen_q, head_dim], key and value likewise; gives [batch, seqlen_q, heads_q, ..].

    The mask alone says which keys a query sees, as for "eager": without one it sees all, and neither `sliding_window`
    nor `is_causal` is read. A compiled call without a mask is causal where `is_causal`, or else the module, says that
    it is, as for "sdpa": there make_mask leaves out plain causal masks.
    """
    bounds = {name: others.pop(name) for name in _BOUNDS if others.get(name) is not None}
    _reject(others)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if isinstance(scaling, Tensor):
        q, scaling = scaled(q, scaling)
    options: dict[str, Any] = {
        "scale": scaling,
        "dropout": dropout,
        "softcap": softcap,
        "sink": None if s_aux is None else s_aux.float(),
        "deterministic": deterministic,
    }
    options = {name: value for name, value in options.items() if value is not None}
    causal = torch.compiler.is_compiling() and bool(
        getattr(module, "is_causal", True) if is_causal is None else is_causal
    )
    mask = _described(attention_mask, q, k)
    if "cu_seq_lens_q" in bounds and (mask is None or mask.plan.kind is not Kind.DOCUMENTS):
        compute.check_bounds(attention_mask, mask)
        return compute.flattened(q, k, v, mask, causal, bounds, options), None
    if mask is not None:
        return compute.described(q, k, v, mask, position_bias, options), None
    if attention_mask is not None:
        return compute.biased(q, k, v, attention_mask, position_bias, options), None
    return compute.without_mask(q, k, v, causal, position_bias, options), None


def _described(mask: Tensor | None, q: Tensor, k: Tensor) -> Mask | None:
    """The mask, if what it says besides its tensor can be read: a compiler sees the tensor alone."""
    if not isinstance(mask, Mask) or torch.compiler.is_compiling():
        return None
    return mask if mask.shape == (q.shape[0], 1, q.shape[1], k.shape[1]) else None


def _reject(keywords: dict[str, Any]) -> None:
    for name, value in keywords.items():
        if value is None or name in _WITHOUT_EFFECT or (name == "output_attentions" and not value):
            continue
        what = "returns no attention weights" if name == "output_attentions" else f"has no {name}"
        raise NotImplementedError(
            f'attn_implementation="strobe" {what}, which this call of {name} asks for: choose "eager" or "sdpa"'
        )
