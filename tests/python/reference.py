# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, as its equations say, for every option."""

import numpy as np


def visible_keys(sq, sk, causal=False, window=(-1, -1), chunk=0):
    """[sq, sk] bool."""
    center = np.arange(sq)[:, None] + (0 if causal == "top_left" else sk - sq)
    key = np.arange(sk)[None, :]
    visible = np.ones((sq, sk), bool)
    if causal:
        visible &= key <= center
    if window[0] >= 0:
        visible &= key >= center - window[0]
    if window[1] >= 0:
        visible &= key <= center + window[1]
    if chunk:
        visible &= key // chunk == center // chunk
    return visible


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
    block_mask=None,
    block_size=128,
    keep=None,
    dropout=0.0,
):
    """o [batch, sq, heads, head_dim_v], lse [batch, heads, sq] and max_logits [batch, heads]; `keep` is a mask."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (batch, sq, heads, d), sk = q.shape, k.shape[1]
    k, v = (x.repeat(heads // x.shape[2], axis=2) for x in (k, v))
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * (d**-0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if alibi_slopes is not None:
        center = np.arange(sq)[:, None] + (0 if causal == "top_left" else sk - sq)
        distance = abs(center - np.arange(sk))
        s = s - np.broadcast_to(np.asarray(alibi_slopes, np.float64), (batch, heads))[..., None, None] * distance
    if bias is not None:
        s = s + np.asarray(bias, np.float64)
    visible = np.broadcast_to(visible_keys(sq, sk, causal, window, chunk), s.shape).copy()
    if block_mask is not None:
        blocks = np.asarray(block_mask).repeat(block_size, axis=2)[:, :, :sq].repeat(block_size, axis=3)[..., :sk]
        visible &= blocks.astype(bool)
    s = np.where(visible, s, -np.inf)
    logits = (
        s
        if sink is None
        else np.concatenate(
            [s, np.broadcast_to(np.asarray(sink, np.float64)[None, :, None, None], (batch, heads, sq, 1))], -1
        )
    )
    row_max = logits.max(-1, keepdims=True, initial=-np.inf)
    shifted = np.where(np.isfinite(row_max), row_max, 0.0)
    exponentials = np.exp(logits - shifted)
    total = exponentials.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + shifted)[..., 0]
    p = exponentials[..., :sk] / np.where(total == 0, 1, total)
    if keep is not None:
        # The library rounds dropout to a multiple of 1 / 256.
        p = p * keep / (1 - round(dropout * 256) / 256)
    max_logits = s.reshape(batch, heads, -1).max(-1, initial=-np.inf)
    return np.einsum("bhqk,bkhd->bqhd", p, v), lse, max_logits
