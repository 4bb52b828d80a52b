# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 on the device, as plain as the equations, and the error that each element may have."""

import math

import torch

# Unit roundoff: half the gap after 1.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def masked_scores(q, k, *, right=None, left=None, bottom_right=True, chunk=0, scale, softcap=0.0, alibi_slopes=None):
    """Scores of q [sq, heads, d] and k [sk, heads, d], [heads, sq, sk], -inf where hidden; and which pairs are
    visible, [sq, sk]."""
    sq, sk = q.shape[0], k.shape[0]
    row = torch.arange(sq, device=q.device)[:, None] + (sk - sq if bottom_right else 0)
    key = torch.arange(sk, device=q.device)[None]
    visible = torch.ones(sq, sk, dtype=torch.bool, device=q.device)
    if right is not None:
        visible &= key <= row + right
    if left is not None:
        visible &= key >= row - left
    if chunk:
        visible &= row // chunk == key // chunk
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * (row - key).abs()
    return torch.where(visible, scores, -math.inf), visible


def attention(q, k, v, *, sink=None, **options):
    """One sequence: q [sq, heads, d], k [sk, heads_kv, d], v [sk, heads_kv, dv]. Returns O, LSE [heads, sq],
    sum_j p_ij |v_j|, which errors of probabilities multiply, and each head's largest score. A visible key with a value
    that is not finite makes O NaN; a masked one never counts. Options: masked_scores's."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    sq, sk = q.shape[0], k.shape[0]
    no_key = (
        torch.full((q.shape[1],), -math.inf, device=q.device, dtype=torch.float64) if sink is None else sink.double()
    )
    if sq == 0 or sk == 0:
        zeros = torch.zeros(sq, q.shape[1], v.shape[2], device=q.device, dtype=torch.float64)
        return zeros, no_key[:, None].expand(-1, sq), zeros, torch.full_like(no_key, -math.inf)
    scores, visible = masked_scores(q, k, **options)
    dead = ~visible.any(-1)
    with_sink = torch.cat([scores, no_key[:, None, None].expand(-1, sq, 1)], -1)
    lse = torch.where(dead, no_key[:, None], torch.logsumexp(with_sink, -1))
    p = torch.where(visible & ~dead[:, None], torch.exp(scores - lse[..., None]), 0.0)
    finite = torch.isfinite(v)
    o = torch.einsum("hij,jhd->ihd", p, torch.where(finite, v, 0.0))
    if not finite.all():
        o = torch.where(torch.einsum("ij,jhd->ihd", visible.double(), (~finite).double()) > 0, math.nan, o)
    return o, lse, torch.einsum("hij,jhd->ihd", p, torch.where(finite, v, 0.0).abs()), scores.amax((1, 2))


def bound(o, p_abs_v, dtype, score_error):
    """Each probability is rounded to the dtype once, the output once; float32 sums and exponents add `score_error`, the
    error of a score. Terms of second order are in the factor."""
    u = ROUNDOFF[dtype]
    return 1.02 * (u * o.abs() + (u + 2 * score_error) * p_abs_v) + 1e-6
