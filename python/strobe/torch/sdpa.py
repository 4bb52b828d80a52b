# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.scaled_dot_product_attention through Strobe."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from strobe import _core
from strobe._arrays import empty_output
from strobe.torch.functional import attention, cast, is_eager_inference
from strobe.torch.ops import rows


class sdpa(TorchFunctionMode):  # noqa: N801
    """`with sdpa():`

    While it is entered, scaled_dot_product_attention runs on Strobe, with the same arguments and gradients.

    What Strobe does not do raises NotImplementedError; with ``fallback`` PyTorch does it instead. Modules that call
    PyTorch's fused kernels by other names, as nn.MultiheadAttention does in inference, are not reached.
    """

    def __init__(self, *, fallback: bool = False) -> None:
        super().__init__()
        self.fallback = fallback

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        try:
            return _attention(*args, **kwargs)
        except NotImplementedError:
            if not self.fallback:
                raise
            return func(*args, **kwargs)


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
    """query [.., heads_q, seqlen_q, head_dim], key and value likewise, any number of leading axes."""
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask is given with is_causal: give one of them")
    if query.dim() < 3:
        raise NotImplementedError(f"query has rank {query.dim()}: Strobe takes [.., heads, seqlen, head_dim]")
    if not enable_gqa and query.shape[-3] != key.shape[-3]:
        raise ValueError(f"query has {query.shape[-3]} heads and key {key.shape[-3]}: set enable_gqa")
    options: dict[str, Any] = {"scale": scale, "causal": "top_left" if is_causal else False}
    if attn_mask is None and not dropout_p and query.dim() == 4 and is_eager_inference(query, key, value):
        return _eager(query, key, value, options)
    if attn_mask is not None:
        options["bias"] = _bias(attn_mask, query, key)
    if dropout_p:
        options["dropout"] = dropout_p
    q, k, v = (_batched(x).transpose(1, 2) for x in (query, key, value))
    out = attention(q, k, v, **options).transpose(1, 2)
    return out if query.dim() == 4 else out.reshape(*query.shape[:-3], *out.shape[1:])


def _eager(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    """The same without transposing tensors, which takes PyTorch longer than planning the call."""
    q, k, v = (rows(x) for x in cast(query, key, value))
    out = empty_output(q, v)
    _core.forward(q, k, v, out, None, None, heads_first=True, **options)
    return out


def _batched(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 4 else tensor.reshape(-1, *tensor.shape[-3:])


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask [.., seqlen_q, seqlen_k], whose leading axes broadcast, as a bias; True stands for a visible key."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_fill(~mask, float("-inf"))
    elif mask.dtype not in (torch.float32, query.dtype):
        mask = mask.to(torch.float32)
    rows, columns = query.shape[-2], key.shape[-2]
    mask = mask.expand(*mask.shape[:-2], rows, columns) if mask.dim() >= 2 else mask.expand(rows, columns)
    if mask.dim() > 4 or query.dim() > 4:
        mask = mask.expand(*query.shape[:-2], rows, columns).reshape(-1, query.shape[-3], rows, columns)
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask if mask.stride(-1) == 1 or columns <= 1 else mask.contiguous()
