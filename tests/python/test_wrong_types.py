# SPDX-License-Identifier: Apache-2.0
"""Arguments of a wrong type: a TypeError that names the argument, from every public function."""

import numpy as np
import pytest
import strobe
import strobe.jax
import strobe.torch
import torch
from strobe._option_list import OPTIONS, SCORE_NAMES
from strobe.torch import ops

X = np.zeros((1, 8, 2, 16), np.float32)
LSE = np.zeros((1, 2, 8), np.float32)
CACHE = np.zeros((1, 16, 2, 16), np.float32)
LENGTHS = np.zeros(1, np.int32)
PAGES = {"page_table": np.zeros((1, 2), np.int32), "seqused_k": LENGTHS + 8, "prefix_pages": 1}
# A value that no option of the kind takes.
WRONG = {"tensor": [1], "number": "1", "integer": 1.5, "word": 1.5, "flag": 1, "other": 1.5}


def prefix(**wrong):
    return strobe.shared_prefix_attention(**{"q": X, "k": X, "v": X} | PAGES | wrong)


def operator(**options):
    return ops.operator_arguments(*(torch.zeros(1, 8, 2, 16) for _ in range(3)), options)


def torch_attention(**options):
    return strobe.torch.attention(*(torch.zeros(1, 8, 2, 16) for _ in range(3)), **options)


def check(call, name, **wrong):
    with pytest.raises(TypeError, match=rf"^{name} is of type "):
        call(**wrong)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    wrong = {name: WRONG[OPTIONS[name].kind]}
    check(lambda **options: strobe.explain(X.shape, X.shape, X.shape, **options), name, **wrong)
    if name != "out_dtype":  # read with 8-bit tensors alone
        check(lambda **options: strobe.attention(X, X, X, **options), name, **wrong)
    if name in SCORE_NAMES:
        check(lambda **options: strobe.attention_backward(X, X, X, X, X, LSE, **options), name, **wrong)
        check(lambda **options: strobe.jax.attention(X, X, X, **options), name, **wrong)
        check(torch_attention, name, **wrong)
        check(operator, name, **wrong)


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        (lambda value: strobe.explain(X.shape, X.shape, X.shape, dtype=value), "dtype", 3),
        (lambda value: strobe.explain(X.shape, X.shape, X.shape, device=value), "device", 3),
        (lambda value: strobe.dropout_mask(value, 0.5), "shape", 3),
        (lambda value: strobe.dropout_mask((1, 1, 2, value), 0.5), "shape", 2.5),
        (lambda value: strobe.local_block_mask(64, 64, block_size=value), "block_size", "64"),
        (lambda value: strobe.local_block_mask(value, 64), "seqlen_q", 64.0),
        (lambda value: strobe.strided_block_mask(64, 64, stride=value), "stride", 2.0),
        (lambda value: strobe.quantize(value, X, X), "q", [1]),
        (lambda value: strobe.quantize(X, X, X, element=value), "element", 3),
        (lambda value: strobe.quantize(X, X, X, q_scales=value), "q_scales", 128),
        (lambda value: strobe.quantize(X, X, X, rotate_v=value), "rotate_v", 1),
        (lambda value: strobe.quantize(X, X, X, seed=value), "seed", 0.5),
        (lambda value: strobe.quantize(X, X, X, max_seqlen_q=value), "max_seqlen_q", "8"),
        (lambda value: strobe.quantize(X, X, X, threads=value), "threads", "all"),
        (lambda value: strobe.quantize(X, X, X, engine=value), "engine", 1),
        (lambda value: strobe.plan_quantization(X, X, X, mode=value), "mode", 1),
        (lambda value: strobe.plan_quantization(X, X, X, max_rmse=value), "max_rmse", "small"),
        (lambda value: strobe.merge(value), "parts", 1),
        (lambda value: strobe.merge([(X, LSE)], out_dtype=value), "out_dtype", 1),
        (lambda value: strobe.merge([(X, LSE)], threads=value), "threads", 1.5),
        (lambda value: strobe.append(CACHE, CACHE, X, X, value), "cache_seqlens", [0]),
        (lambda value: strobe.append(CACHE, CACHE, X, X, LENGTHS, interleaved=value), "interleaved", 1),
        (lambda value: strobe.append(CACHE, CACHE, X, X, LENGTHS, cos=value), "cos", [1.0]),
        (lambda value: prefix(q=value), "q", [1]),
        (lambda value: prefix(page_table=value), "page_table", [[0, 1]]),
        (lambda value: prefix(seqused_k=value), "seqused_k", [8]),
        (lambda value: prefix(prefix_pages=value), "prefix_pages", 1.0),
    ],
)
def test_arguments(call, name, value):
    check(call, name, value=value)
