# SPDX-License-Identifier: Apache-2.0
"""Attention from Python: NumPy arrays in, NumPy arrays out; then the gradients."""

import numpy as np
import strobe

# [batch, seqlen, heads, head_dim]; two query heads read each key head.
generator = np.random.default_rng(1)
q = generator.standard_normal((1, 512, 4, 64), dtype=np.float32)
k, v = (generator.standard_normal((1, 512, 2, 64), dtype=np.float32) for _ in range(2))

o, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
d_o = np.ones_like(o)
dq, dk, dv = strobe.attention_backward(d_o, q, k, v, o, lse, causal=True)


def standard_attention(q, k, v):
    """The equation, with the matrix of scores in memory."""
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    scores += np.triu(np.full(scores.shape[-2:], -np.inf), k=1)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", p / p.sum(axis=-1, keepdims=True), v)


error = abs(o - standard_attention(q, k, v)).max()
print(f"o {o.shape}, lse {lse.shape}, dk {dk.shape}; largest difference from standard attention {error:.1e}")
assert error < 1e-5
