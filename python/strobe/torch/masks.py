# SPDX-License-Identifier: Apache-2.0
"""attn_mask of scaled_dot_product_attention as a bias, and the keys that it hides."""

import torch
from torch import Tensor
from torch.nn import Parameter

from strobe import _mask_argument
from strobe._frameworks.torch import Torch
from strobe._shapes import dtype_name
from strobe.torch.ops import is_traced

_TORCH = Torch()


def check_mask(mask: Tensor, query: Tensor) -> None:
    """As PyTorch: an integer mask would be added, which hides nothing."""
    if type(mask) not in (Tensor, Parameter) and not is_traced(query):
        raise NotImplementedError(f"attn_mask is a {type(mask).__name__}: Strobe takes masks of plain tensors")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"attn_mask is {str(mask.dtype).removeprefix('torch.')}: it must be bool or floating point")


def batched_mask(mask: Tensor, shape: list[int]) -> Tensor:
    """The mask, which broadcasts to `shape` [.., seqlen_q, seqlen_k], as [batch, heads, seqlen_q, seqlen_k].

    An extent that is not the call's own is 1.
    """
    whole = shape if len(shape) > 2 else [1, *shape]
    missing = len(whole) - mask.dim()
    if missing < 0 or any(n not in (1, wanted) for n, wanted in zip(mask.shape, whole[missing:], strict=True)):
        raise ValueError(f"attn_mask has shape {list(mask.shape)}: it must broadcast to {shape}")
    mask = mask.reshape((1,) * missing + mask.shape)
    if len(whole) == 4:
        return mask
    if any(n != 1 for n in mask.shape[:-3]):
        mask = mask.expand(*whole[:-3], *mask.shape[-3:])
    return mask.reshape(-1, *mask.shape[-3:])


def without_hidden_keys(mask: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """K and V [batch, heads_kv, seqlen_k, ..] with zeros, which get no gradient, where `mask` shows a key to no query.

    Nobody waits for a GPU to learn whether there are such keys.
    """
    turned = k.transpose(1, 2), v.transpose(1, 2)
    read = not (mask.is_cuda or mask.is_meta or is_traced(mask))
    kept = _mask_argument.without_hidden_keys(_TORCH, mask, *turned, read=read)
    return (k, v) if kept[0] is turned[0] else tuple(x.transpose(1, 2) for x in kept)


def as_bias(mask: Tensor, seqlen_q: int, seqlen_k: int, dtype: torch.dtype) -> Tensor:
    """What batched_mask() gave as a bias of float32, or of q's dtype; True stands for a visible key."""
    return _mask_argument.as_bias(_TORCH, mask, (seqlen_q, seqlen_k), ("float32", dtype_name(dtype)))
