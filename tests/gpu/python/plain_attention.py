# SPDX-License-Identifier: Apache-2.0
"""Attention as its equation says, differentiable, in the dtype of its inputs: in float64 the tests' reference, in half
precision their measure of error."""

import torch


def visible_keys(sq, sk, causal=False, window=(-1, -1), chunk=0, device="cuda"):
    """[sq, sk] bool, by the rules of docs/options.md."""
    row = torch.arange(sq, device=device)[:, None] + (0 if causal == "top_left" else sk - sq)
    key = torch.arange(sk, device=device)
    visible = torch.ones(sq, sk, dtype=torch.bool, device=device)
    left, right = window
    if causal:
        visible &= key <= row
    if left >= 0:
        visible &= key >= row - left
    if right >= 0:
        visible &= key <= row + right
    if chunk:
        visible &= row // chunk == key // chunk
    return visible, (row - key).abs()


def attention(
    q,
    k,
    v,
    *,
    scale=None,
    causal=False,
    window=(-1, -1),
    chunk=0,
    softcap=0.0,
    alibi_slopes=None,
    bias=None,
    sink=None,
    kept=None,
):
    """(o, lse) of q [batch, sq, heads, d], k and v likewise; a row without keys gives o = 0 and lse = -inf. `kept`:
    what dropout multiplies probabilities with."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if not scores.numel():  # no query or no key
        return q.new_zeros(*q.shape[:-1], v.shape[-1]), q.new_full(scores.shape[:-1], -torch.inf)
    visible, distance = visible_keys(q.shape[1], k.shape[1], causal, window, chunk, q.device)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.to(scores.dtype)[..., None, None] * distance
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    largest = scores.detach().masked_fill(~visible, -1e4).amax(-1, keepdim=True)
    weights = torch.where(visible, scores - largest, -torch.inf).exp()
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink.to(scores.dtype)[:, None, None] - largest).exp()
    alive = total > 0
    probabilities = weights / total.where(alive, 1)
    if kept is not None:
        probabilities = probabilities * kept.to(scores.dtype)
    o = torch.einsum("bhqk,bkhd->bqhd", probabilities, v)
    lse = torch.where(alive, largest + total.where(alive, 1).log(), -torch.inf)
    return o, lse[..., 0]


def packed_attention(q, k, v, lengths_q, lengths_k, **options):
    """o [total, heads, d_v] of packed sequences of these lengths."""
    parts = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
    return torch.cat([attention(*(x[None] for x in part), **options)[0][0] for part in parts])


def gradients(function, tensors, d_outputs, dtype):
    """(outputs, gradients of the tensors) with every step in `dtype`, as float64."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in tensors]
    outputs = function(*inputs)
    found = torch.autograd.grad(outputs, inputs, [x.to(y.dtype) for x, y in zip(d_outputs, outputs, strict=True)])
    return [x.detach().double() for x in (*outputs, *found)]


def assert_as_close(results, exact, plain, dtype):
    """No result is farther from float64 than twice what plain attention in half precision is, and one more rounding."""
    for index, (result, wanted, peer) in enumerate(zip(results, exact, plain, strict=True)):
        finite = wanted.isfinite()
        assert torch.equal(result.isfinite(), finite), f"result {index}: finite where it must not be, or the reverse"
        result, wanted, peer = (x.where(finite, 0) for x in (result, wanted, peer))
        allowed = 2 * (peer - wanted).abs().max() + torch.finfo(dtype).eps * wanted.abs().max()
        error = (result - wanted).abs().max()
        assert error <= allowed, f"result {index}: error {error:.3g}, allowed {allowed:.3g}"
