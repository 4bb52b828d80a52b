# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 of PyTorch with functions of scores and positions, whose gradients are autograd's."""

import torch


def attention(q, k, v, score=None, mask=None, scale=None, normalize="softmax"):
    """out and lse, -inf where nothing is normalized.

    Of q [batch, seqlen, heads, head_dim] and so on; score(s, b, h, q, k) and mask(b, h, q, k).
    """
    (batch, sq, heads, d), sk = q.shape, k.shape[1]
    k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    positions = [torch.arange(n) for n in (batch, heads, sq, sk)]
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * (d**-0.5 if scale is None else scale)
    if score is not None:
        s = of_pairs(score, positions, s)
    if mask is not None:
        s = s.masked_fill(~of_pairs(mask, positions), float("-inf"))
    if normalize == "none":
        p = s.masked_fill(s == float("-inf"), 0)
        return torch.einsum("bhqk,bkhd->bqhd", p, v), s.new_full(s.shape[:-1], float("-inf"))
    lse = s.logsumexp(-1)
    p = (s - torch.where(lse.isinf(), 0.0, lse)[..., None]).exp()
    return torch.einsum("bhqk,bkhd->bqhd", p, v), lse


def of_pairs(function, positions, *scores):
    """[batch, heads, seqlen_q, seqlen_k] of a function of tensors of rank 0."""
    for axis in (3, 2, 1, 0):
        dims = [0 if at == axis else None for at in range(4)]
        function = torch.vmap(function, in_dims=(*(0 for _ in scores), *dims))
    return function(*scores, *positions)


def draw(seed, *shape, dtype=torch.float32):
    """The same numbers on any default device."""
    numbers = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return numbers.to(torch.get_default_device(), dtype)


def copies(*tensors, dtype=torch.float64):
    """Leaves of the tape with the same values."""
    return [x.detach().to(dtype).requires_grad_() if x.is_floating_point() else x for x in tensors]
