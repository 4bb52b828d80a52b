# SPDX-License-Identifier: Apache-2.0
"""A scale that is a tensor, as models learn it, by call or by head."""

import torch
from torch import Tensor


def scaled(q: Tensor, scale: Tensor) -> tuple[Tensor, float]:
    """q times a part of the scale, and what is left of it, for the call.

    The product is PyTorch's, which has its gradient: sum(dS S) / scale, by head for a scale [heads_q]. Nobody waits for
    a GPU to learn what the tensor holds. The product is rounded to q's dtype once, not at all for powers of 2. What is
    left is the power of 2 beside 1 / sqrt(head_dim): with it scaled queries stay in the range of q, of which float16
    has little.
    """
    heads, head_dim = q.shape[-2:]
    if scale.dtype == torch.bool or scale.is_complex():
        raise TypeError(
            f"scale is {str(scale.dtype).removeprefix('torch.')}: it must be a number, or a tensor of those"
        )
    if scale.dim() > 1 or scale.numel() not in (1, heads):
        raise ValueError(
            f"scale has shape {list(scale.shape)}: it must be a number, [1] or [heads_q], which is {heads}"
        )
    if q.dtype.itemsize == 1:
        raise NotImplementedError("q is of 8 bits: its scale must be a number, and no tensor")
    root = 1.0
    while 2 * root * root < head_dim:
        root *= 2
    factor = scale.to(q.device, torch.float32, non_blocking=True) * root
    return (q * factor.reshape(-1, 1)).to(q.dtype), 1 / root
