# SPDX-License-Identifier: Apache-2.0
"""strobe.torch.sparse_attention on a GPU beside attention under a mask of what the lists name: pytest
tests/gpu/python/test_sparse_gradients.py, where PyTorch is installed."""

import plain_attention as plain
import pytest
import strobe.torch
import torch
from test_python_gradients import BF16, FP16, check, draw

BATCH, QUERIES, KEYS, HEADS, TOPK = 2, 60, 200, 8, 24


def draw_lists():
    """Different keys for each query, and the bias that hides the others."""
    indices = torch.rand(BATCH, QUERIES, 1, KEYS, device="cuda").argsort(-1)[..., :TOPK].to(torch.int32)
    hidden = torch.full((BATCH, 1, QUERIES, KEYS), -torch.inf, device="cuda")
    return indices, hidden.scatter_(-1, indices.permute(0, 2, 1, 3).long(), 0.0)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bfloat16", "float16"])
def test_keys_and_values_apart(dtype):
    indices, hidden = draw_lists()
    sink = draw(HEADS, dtype=torch.float32)
    tensors = (
        draw(BATCH, QUERIES, HEADS, 64, dtype=dtype),
        draw(BATCH, KEYS, 2, 64, dtype=dtype),
        draw(BATCH, KEYS, 2, 48, dtype=dtype),
    )
    check(
        lambda q, k, v: strobe.torch.sparse_attention(q, k, v, indices, sink=sink, return_lse=True),
        lambda q, k, v: plain.attention(q, k, v, bias=hidden, sink=sink),
        tensors,
        dtype,
    )


def test_latent_rows():
    indices, hidden = draw_lists()
    tensors = (draw(BATCH, QUERIES, HEADS, 576), draw(BATCH, KEYS, 1, 576))
    check(
        lambda q, rows: (strobe.torch.sparse_attention(q, rows, None, indices, head_dim_v=512),),
        lambda q, rows: plain.attention(q, rows, rows[..., :512], bias=hidden)[:1],
        tensors,
        BF16,
    )
