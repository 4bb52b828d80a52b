# SPDX-License-Identifier: Apache-2.0
"""Masks that are refused, with one message each; the outputs stay as they were."""

import numpy as np
import pytest
import strobe
import strobe.torch
import torch

X = np.zeros((2, 8, 4, 16), np.float32)
SHAPES = (
    "it must be [batch, seqlen_k], [batch, seqlen_q, seqlen_k] or [batch, heads_q, seqlen_q, seqlen_k], each extent "
    "1 or that of [2, 4, 8, 8]"
)
KEYS = np.ones((2, 8), bool)
HOLES = np.arange(8) % 3 > 0
WRONG = [
    ({"mask": KEYS.astype(np.int64)}, TypeError, "mask is int64: it must be bool, True where a key is visible, "),
    ({"mask": KEYS.astype(np.uint8)}, TypeError, "mask is uint8: it must be bool, True where a key is visible, "),
    ({"mask": KEYS.astype(np.complex64)}, TypeError, "mask is complex64: it must be bool, "),
    ({"mask": KEYS[0]}, ValueError, f"mask has shape [8]: {SHAPES}"),
    ({"mask": KEYS[:, :7]}, ValueError, f"mask has shape [2, 7]: {SHAPES}"),
    ({"mask": KEYS[None, None, None]}, ValueError, f"mask has shape [1, 1, 1, 2, 8]: {SHAPES}"),
    ({"mask": np.ones((8, 8), bool)}, ValueError, "; give mask[None] for one of [seqlen_q, seqlen_k]"),
    ({"mask": [[True]]}, TypeError, "mask is of type list: it must be a tensor of q's framework, since mask is given"),
    ({"mask": "causal"}, ValueError, "mask: unknown name `causal` at column 1: `causal`"),
    ({"mask": KEYS, "page_table": X}, ValueError, "mask is given with page_table: give seqused_k and leftpad_k"),
    ({"mask": KEYS, "leftpad_k": X}, ValueError, "mask is given with leftpad_k: give seqused_k for where"),
    ({"mask": KEYS, "cache_batch_idx": X}, ValueError, "mask is given with cache_batch_idx: give seqused_k"),
    ({"mask": KEYS, "cu_seqlens_q": X}, ValueError, "mask is given with cu_seqlens_q: give q, k and v with a batch"),
    ({"mask": KEYS, "cu_seqlens_k": X}, ValueError, "mask is given with cu_seqlens_k: give q, k and v with a batch"),
    ({"mask": KEYS, "causal": 1}, TypeError, "causal is of type int"),
    ({"mask": KEYS, "bias": [1]}, TypeError, "bias is of type list"),
    ({"mask": ~KEYS, "bias": X}, ValueError, "bias has shape [2, 8, 4, 16]: it must be"),
    ({"mask": ~KEYS[:, None, None], "bias": [1]}, TypeError, "bias is of type list"),
    (
        {"mask": ~KEYS, "bias": torch.zeros(1, 1, 8, 8)},
        TypeError,
        "bias is of type torch.Tensor: it must be a tensor of",
    ),
    ({"mask": ~KEYS, "k": torch.zeros(X.shape)}, TypeError, "k is of type torch.Tensor: it must be a tensor of q's"),
    ({"mask": ~KEYS, "v": [1.0]}, TypeError, "v is of type list: it must be a tensor of q's framework"),
    ({"mask": ~KEYS, "k": None}, TypeError, "k is of type NoneType: it must be a tensor of q's framework"),
    ({"mask": KEYS & HOLES, "v": X[0]}, ValueError, "v has rank 3: it must have rank 4"),
    ({"mask": KEYS & HOLES, "v": X[:1]}, ValueError, "v has shape [1, 8, 4, 16]: it must be [2, 8, 4, 16]"),
    ({"mask": KEYS & HOLES, "k": X[:1], "v": X[:1]}, ValueError, "q has batch 2 and k has batch 1"),
    ({"mask": ~KEYS, "q": X[0]}, ValueError, "q has rank 3: it must have rank 4"),
    ({"mask": ~KEYS, "k": X[:, :, :3]}, ValueError, "q has 4 heads and k has 3"),
    (
        {"mask": np.arange(512).reshape(2, 4, 8, 8) % 3 == 0, "k": X[:, :, :3], "v": X[:, :, :3]},
        ValueError,
        "q has 4 heads and k has 3",
    ),
    ({"mask": KEYS, "q": X.astype(np.int8)}, NotImplementedError, "mask is given, but q is int8: give seqused_k"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG)
def test_rejects(arguments, error, message):
    out = np.full(X.shape, 7, np.float32)
    with pytest.raises(error) as caught:
        strobe.attention(**{"q": X, "k": X, "v": X, "out": out} | arguments)
    assert message in str(caught.value)
    assert (out == 7).all()
    assert not strobe.attention(X, X, X, mask=KEYS).any()


def test_torch_rejects():
    x = torch.zeros(X.shape)
    for mask, error, message in (
        (KEYS, TypeError, "mask is of type ndarray: it must be a torch.Tensor"),
        (torch.ones(2, 8, dtype=torch.int32), TypeError, "mask is int32: it must be bool"),
        (torch.ones(8, 8), ValueError, r"mask\[None\]"),
        (torch.ones(2, 8, device="meta"), ValueError, "mask is on meta and q on cpu"),
    ):
        with pytest.raises(error, match=message):
            strobe.torch.attention(x, x, x, mask=mask)
    with pytest.raises(ValueError, match=r"mask requires a gradient, .*: call strobe\.torch\.attention"):
        strobe.attention(x, x, x, mask=torch.ones(2, 8, requires_grad=True))


@pytest.mark.parametrize("tensor_of", [np.asarray, torch.from_numpy])
def test_a_bool_bias_is_told_of_mask(tensor_of):
    q, bias = tensor_of(np.zeros((1, 8, 2, 16), np.float32)), tensor_of(np.ones((1, 2, 8, 8), bool))
    with pytest.raises(
        ValueError, match="bias is bool: it must be float32 or q's dtype; give mask, of which True is a"
    ):
        strobe.attention(q, q, q, bias=bias)
    with pytest.raises(ValueError, match="seqused_k is bool: it must be int32"):
        strobe.attention(q, q, q, seqused_k=tensor_of(np.ones(1, bool)))
    blocks = tensor_of(np.ones((1, 1, 1, 1), bool))
    assert (strobe.attention(q, q, q, block_mask=blocks) == 0).all()
