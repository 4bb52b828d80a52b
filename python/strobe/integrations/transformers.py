# SPDX-License-Identifier: Apache-2.0
"""``attn_implementation="strobe"`` for Hugging Face transformers: encoders, decoders, and generation with a cache."""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

import strobe
from strobe.integrations.kv_cache import Cache, reads_in_place
from strobe.torch import attention
from strobe.torch.ops import is_traced

__all__ = ["register"]


def register() -> None:
    """Makes ``attn_implementation="strobe"`` known to every model; calling it again changes nothing.

    Padding is left out of the computation: the tokens of a batch are packed. A mask that is no padding, [batch, heads
    or 1, seqlen_q, seqlen_k], becomes a bias. Attention weights are not returned.
    """
    AttentionInterface.register("strobe", _attention)
    AttentionMaskInterface.register("strobe", _mask)


def _mask(**options: Any) -> Tensor | None:
    """Which keys are tokens, [batch, tokens], or None where all are: as flash_attention_mask.

    But without a mask for padding a causal call says the tokens of a static cache, which has room for more.
    """
    if options.get("attention_mask") is not None or "allow_is_bidirectional_skip" in options:
        return flash_attention_mask(**options)
    if "cache_position" in options:  # transformers 4
        end = int(options["cache_position"][-1]) + 1
    else:
        end = int(options.get("q_offset", 0)) + options["q_length"]
    tokens = end - options.get("kv_offset", 0)
    if tokens >= options["kv_length"]:
        return None
    return torch.ones(options["batch_size"], tokens, dtype=torch.bool, device=options.get("device"))


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [batch, heads_q, seqlen_q, head_dim], key and value likewise; gives [batch, seqlen_q, heads_q, ..]."""
    if others.get("position_bias") is not None:
        raise NotImplementedError('attn_implementation="strobe" has no position_bias: choose "sdpa" for this model')
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    options: dict[str, Any] = {
        "causal": bool(module.is_causal if is_causal is None else is_causal),
        "scale": scaling,
        "dropout": dropout,
        "softcap": softcap,
        # transformers counts the query's own key to the window.
        "window": None if sliding_window is None else (sliding_window - 1, sliding_window - 1),
        "sink": None if s_aux is None else s_aux.float(),
    }
    if options["window"] is None:
        del options["window"]
    if others.get("cu_seq_lens_q") is not None:
        return _flattened(q, k, v, options, others), None
    if attention_mask is None:
        return attention(q, k, v, **options), None
    if attention_mask.dim() == 4:
        options["causal"] = False  # the mask says it already
        return attention(q, k, v, bias=_bias(attention_mask, q, k), **options), None
    return _padded(q, k, v, attention_mask.bool(), options), None


def _flattened(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], others: dict[str, Any]) -> Tensor:
    """A batch of 1 that holds sequences one after another, whose bounds the collator gave."""
    o = attention(
        *(x.flatten(0, 1) for x in (q, k, v)),
        cu_seqlens_q=others["cu_seq_lens_q"].int(),
        cu_seqlens_k=others["cu_seq_lens_k"].int(),
        max_seqlen_q=int(others.get("max_length_q") or -1),
        max_seqlen_k=int(others.get("max_length_k") or -1),
        **options,
    )
    return o.unflatten(0, q.shape[:2])


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: dict[str, Any]) -> Tensor:
    """`mask` [batch, seqlen_k] is true for tokens; the queries are the last of them."""
    batch, seqlen_q = q.shape[:2]
    seqlen_k = mask.shape[1]
    k, v = (x[:, :seqlen_k] for x in (k, v))  # a static cache has room for more
    if seqlen_q == 1 and (rows := _rows_in_place(q, k, v, mask)) is not None:
        given = {name: value for name, value in options.items() if value is not None}
        return strobe.attention(q, k, v, **rows, **given)
    if seqlen_q > 1 and bool(mask.all()):
        return attention(q, k, v, **options)
    # One query a sequence is there even where its own key is masked, as transformers' other implementations have it.
    q_mask = mask[:, -seqlen_q:] if seqlen_q > 1 else torch.ones_like(mask[:, :1])
    rows_q, cu_seqlens_q = _packing(q_mask)
    rows_k, cu_seqlens_k = _packing(mask)
    o = attention(
        *(x.flatten(0, 1).index_select(0, rows) for x, rows in ((q, rows_q), (k, rows_k), (v, rows_k))),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=seqlen_q,
        max_seqlen_k=seqlen_k,
        **options,
    )
    padded = o.new_zeros(batch * seqlen_q, *o.shape[1:])
    return padded.index_copy(0, rows_q, o).unflatten(0, (batch, seqlen_q))


def _rows_in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> dict[str, Tensor] | None:
    """Where the keys of a decode step lie in its cache, or None where they must be packed.

    They are read in place if those of each sequence follow one another and nothing records or traces the call.
    """
    if is_traced(q, k, v) or (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))):
        return None
    tokens = mask.int()
    first = tokens.argmax(1).int()
    end = (first + tokens.sum(1)).int()
    if not reads_in_place(q, Cache(k, v, leftpad=first)):
        return None
    place = torch.arange(mask.shape[1], device=mask.device)
    in_one_run = ((place >= first[:, None]) & (place < end[:, None])) == mask
    return {"leftpad_k": first, "seqused_k": end} if bool(in_one_run.all()) else None


def _packing(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are tokens, counted through the batch, and where each sequence begins among them."""
    rows = mask.flatten().nonzero().flatten()
    return rows, torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()


def _bias(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_fill(~mask, float("-inf"))
    mask = mask[..., : k.shape[1]].expand(-1, -1, q.shape[1], -1)
    return mask if mask.stride(-1) == 1 else mask.contiguous()
