# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 on the device, as plain as the equations, and the error that each element may have."""

import dataclasses
import math

import torch

# Unit roundoff: half the gap after 1.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def masked_scores(q, k, *, right=None, left=None, bottom_right=True, chunk=0, scale, softcap=0.0, alibi_slopes=None):
    """Scores of q [sq, heads, d] and k [sk, heads, d], [heads, sq, sk], -inf where hidden; which pairs are visible,
    [sq, sk]; and the derivative of a score by its product q.k."""
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
    derivative = torch.full_like(scores, scale)
    if softcap:
        tanh = torch.tanh(scores / softcap)
        scores, derivative = softcap * tanh, scale * (1 - tanh**2)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * (row - key).abs()
    return torch.where(visible, scores, -math.inf), visible, derivative


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
    scores, visible, _ = masked_scores(q, k, **options)
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


@dataclasses.dataclass
class Gradient:
    """A gradient and the error that each element may have; `known` is False where a value that is not finite takes
    part, of which no more is promised than that it does not reach other elements."""

    value: torch.Tensor
    error: torch.Tensor
    known: torch.Tensor


def gradients(q, k, v, o, lse, do, *, d_lse=None, sink=None, dtype, **options):
    """dQ, dK, dV and d_sink of one sequence, from the O [sq, heads, dv] and LSE [heads, sq] that the kernels are given.
    Options: masked_scores's."""
    heads, group = q.shape[1], q.shape[1] // max(1, k.shape[1])
    finite = [torch.isfinite(x).all(-1) for x in (q, k, v, o, do)]
    q, k, v, o, do = (torch.where(torch.isfinite(x), x.double(), 0.0) for x in (q, k, v, o, do))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    known_q = (finite[0] & finite[3] & finite[4] & ~lse.isnan().T).T  # [heads, sq]
    known_k = (finite[1] & finite[2]).repeat_interleave(group, 1).T
    scores, visible, derivative = masked_scores(q, k, **options)
    known_q = known_q & ~(visible & ~known_k[:, None, :]).any(-1) | ~visible.any(-1)
    known_k = (~(visible & ~known_q[..., None]).any(-2)).unflatten(0, (-1, group)).all(1)
    lse = torch.where(lse.isfinite(), lse.double(), math.inf)[..., None]
    p = torch.exp(scores - lse)
    d = torch.einsum("ihc,ihc->hi", do, o)[..., None]
    d_size = torch.einsum("ihc,ihc->hi", do.abs(), o.abs())[..., None]
    if d_lse is not None:
        d = d - d_lse.double()[..., None]
        d_size = d_size + d_lse.double().abs()[..., None]
    dp = torch.einsum("ihc,jhc->hij", do, v)
    dp_size = torch.einsum("ihc,jhc->hij", do.abs(), v.abs())
    ds = p * (dp - d) * derivative

    u = ROUNDOFF[dtype]
    # Of a probability: float32 exponents; of its product with a gradient: 2^-11 and 2^-37 near 0, as it passes between
    # warpgroups in float16, float32 sums, and tanh's own error, which its derivative doubles.
    scale = abs(options["scale"])
    norms = (q.norm(dim=-1).max() * k.norm(dim=-1).max() * scale).item() if q.numel() and k.numel() else 0
    distance = 0.0
    if options.get("alibi_slopes") is not None:
        distance = options["alibi_slopes"].abs().max().item() * (q.shape[0] + k.shape[0])
    relative = 2.0**-21 * (2 + norms + distance + torch.where(lse.isfinite(), lse.abs(), 0.0))
    tanh_error = 2.0**-20 if options.get("softcap") else 0.0
    tiny = 2.0**-25 if dtype == torch.float16 else 0.0  # of operands below float16's normal numbers
    ds_error = (u + 2.0**-11 + relative) * ds.abs() + p * derivative.abs() * 2.0**-21 * (dp_size + d_size)
    ds_error += scale * ((p * tanh_error + 2.0**-37) * (dp - d).abs() + tiny)
    ds_error = torch.where(visible, ds_error, 0.0)
    p_error = torch.where(visible, (u + relative) * p + tiny, 0.0)

    def per_kv(x):
        return x.unflatten(1, (-1, group)).sum(2)

    def gradient(value, error, known):
        return Gradient(value, 1.02 * (error + u * (value.abs() + error)) + 1e-6, known)

    dq = gradient(
        torch.einsum("hij,jhc->ihc", ds, k), torch.einsum("hij,jhc->ihc", ds_error, k.abs()), known_q.T[..., None]
    )
    dk = gradient(
        per_kv(torch.einsum("hij,ihc->jhc", ds, q)),
        per_kv(torch.einsum("hij,ihc->jhc", ds_error, q.abs())),
        known_k.T[..., None],
    )
    dv = gradient(
        per_kv(torch.einsum("hij,ihc->jhc", p, do)),
        per_kv(torch.einsum("hij,ihc->jhc", p_error, do.abs())),
        known_k.T[..., None],
    )
    if sink is None:
        return dq, dk, dv, None
    p_sink = torch.exp(sink.double()[:, None, None] - lse)
    p_error = (2.0**-20 * (2 + sink.abs().max().item()) + relative) * d_size
    d_sink = Gradient(
        -(p_sink * d).sum((-1, -2)),
        (p_sink * (p_error + 2.0**-20 * d_size)).sum((-1, -2)) + 1e-6,
        torch.ones(heads, dtype=torch.bool, device=q.device) & (finite[3] & finite[4]).all(0) & known_q.all(-1),
    )
    return dq, dk, dv, d_sink
