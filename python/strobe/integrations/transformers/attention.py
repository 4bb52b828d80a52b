# SPDX-License-Identifier: Apache-2.0
"""The attention of a layer of transformers: its mask becomes options of Strobe's attention, its result is transposed."""

from typing import Any

import torch
from torch import Tensor

from strobe.integrations.transformers import compute
from strobe.integrations.transformers.mask import Kind, Mask

_WITHOUT_EFFECT = frozenset(
    {
        *("cache_position", "position_ids", "seq_idx", "sliding_window"),  # the mask has said it
        *("num_items_in_batch", "output_hidden_states", "output_router_logits", "return_dict", "use_cache"),
    }
)
_BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    deterministic: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [batch, heads_q, seqlen_q, head_dim], key and value likewise; gives [batch, seqlen_q, heads_q, ..].

    The mask alone says which keys a query sees, `sliding_window` is not read. Without a mask the attention of more than
    one query is causal from the first key on where `is_causal`, or else the module, says that it is.
    """
    bounds = {name: others.pop(name) for name in _BOUNDS if others.get(name) is not None}
    _reject(others)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    options: dict[str, Any] = {
        "scale": scaling,
        "dropout": dropout,
        "softcap": softcap,
        "sink": None if s_aux is None else s_aux.float(),
        "deterministic": deterministic,
    }
    options = {name: value for name, value in options.items() if value is not None}
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if "cu_seq_lens_q" in bounds and not _has_documents(attention_mask):
        return compute.flattened(q, k, v, attention_mask, causal, bounds, options), None
    if attention_mask is None:
        return compute.without_mask(q, k, v, causal, position_bias, options), None
    if isinstance(attention_mask, Mask) and _fits(attention_mask, q, k):
        return compute.described(q, k, v, attention_mask.settle(), position_bias, options), None
    return compute.biased(q, k, v, attention_mask, position_bias, options), None


def _has_documents(mask: Tensor | None) -> bool:
    return isinstance(mask, Mask) and mask.plan.kind is Kind.DOCUMENTS


def _fits(mask: Mask, q: Tensor, k: Tensor) -> bool:
    return mask.shape == (q.shape[0], 1, q.shape[1], k.shape[1])


def _reject(keywords: dict[str, Any]) -> None:
    for name, value in keywords.items():
        if value is None or name in _WITHOUT_EFFECT or (name == "output_attentions" and not value):
            continue
        what = "returns no attention weights" if name == "output_attentions" else f"has no {name}"
        raise NotImplementedError(
            f'attn_implementation="strobe" {what}, which this call of {name} asks for: choose "eager" or "sdpa"'
        )
