# SPDX-License-Identifier: Apache-2.0
"""flex_attention of a function, forward and backward, beside float64."""

import expression_reference
import strobe.torch
import torch
from expression_reference import copies
from flex_functions import D_OUT, K, Q, V


def check(score, mask, leaves, q=Q, k=K, v=V, tolerance=2e-5):
    """Forward and backward beside float64. `leaves` makes score and mask of a list of captured tensors."""
    captured = [x.requires_grad_() if x.is_floating_point() else x for x in (x.clone() for x in leaves)]
    query, key, value = (x.clone().requires_grad_() for x in (q, k, v))
    score_mod = score and score(*captured)
    block_mask = None if mask is None else strobe.torch.create_block_mask(mask, None, None, q.shape[2], k.shape[2])
    out, lse = strobe.torch.flex_attention(query, key, value, score_mod, block_mask, enable_gqa=True, return_lse=True)
    wanted = copies(q, k, v, *leaves)
    exact = score and score(*wanted[3:])
    o, wanted_lse = expression_reference.attention(*(x.transpose(1, 2) for x in wanted[:3]), exact, mask)
    torch.testing.assert_close(out.double(), o.transpose(1, 2), rtol=1e-5, atol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=tolerance)
    out.backward(D_OUT)
    o.backward(D_OUT.double().transpose(1, 2))
    for ours, theirs in zip((query, key, value, *captured), wanted, strict=True):
        if theirs.grad is not None:
            assert ours.grad.dtype == ours.dtype
            rounding = torch.finfo(ours.dtype).eps  # of the sum, once
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=max(1e-4, rounding), atol=10 * tolerance)
