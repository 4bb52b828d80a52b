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
# Values that no option of the kind takes.
NO_INTEGERS = (1.5, "1", True, [1], 1j, object())
WRONG = {
    "tensor": ([1], (1, 2), "1", 1.5, True, object()),
    "number": ("1", True, [1.0], 1j, object()),
    "integer": NO_INTEGERS,
    "word": NO_INTEGERS,
    "flag": (1, 0.0, "True", [True], object()),
    "other": (1.5, object()),
}
OF_OPTIONS = {"causal": (1, [True]), "window": (5, "ab", {1, 2}, (1.5, 2), ("1", 2)), "engine": (True, ["cpu"])}
SWEEP = [
    (name, value) for name, option in OPTIONS.items() for value in (*WRONG[option.kind], *OF_OPTIONS.get(name, ()))
]


def prefix(**wrong):
    return strobe.shared_prefix_attention(**{"q": X, "k": X, "v": X} | PAGES | wrong)


def operator(**options):
    return ops.operator_arguments(*(torch.zeros(1, 8, 2, 16) for _ in range(3)), options)


def torch_attention(**options):
    return strobe.torch.attention(*(torch.zeros(1, 8, 2, 16) for _ in range(3)), **options)


def check(call, name, **wrong):
    with pytest.raises(TypeError, match=rf"^{name} is of type "):
        call(**wrong)


@pytest.mark.parametrize(("name", "value"), SWEEP, ids=str)
def test_options(name, value):
    """Of every function that has the option."""
    wrong = {name: value}
    if name != "qv" or not isinstance(value, tuple):  # which is a shape
        check(lambda **options: strobe.explain(X.shape, X.shape, X.shape, **options), name, **wrong)
    if name != "out_dtype":  # read with 8-bit tensors alone
        check(lambda **options: strobe.attention(X, X, X, **options), name, **wrong)
    if name in SCORE_NAMES:
        check(lambda **options: strobe.attention_backward(X, X, X, X, X, LSE, **options), name, **wrong)
        check(lambda **options: strobe.jax.attention(X, X, X, **options), name, **wrong)
        check(torch_attention, name, **wrong)
        check(operator, name, **wrong)


@pytest.mark.parametrize("value", [[1.0], (1, 2), "text", 1.5, True, object()], ids=str)
@pytest.mark.parametrize("name", ["q", "k", "v", "mask"])
def test_tensors(name, value):
    if (name, value) == ("mask", "text"):
        return  # of the type that a mask may be
    given = {"q": X, "k": X, "v": X, "mask": None}
    for call in (strobe.attention, strobe.explain):
        if not (call is strobe.explain and isinstance(value, tuple)):  # which is a shape
            check(call, name, **given | {name: value})
    check(lambda **tensors: strobe.attention_backward(d_o=X, o=X, lse=LSE, **tensors), name, **given | {name: value})
    of_torch = {name: None if x is None else torch.from_numpy(x) for name, x in given.items()}
    for wrong in (value, X):
        check(strobe.torch.attention, name, **of_torch | {name: wrong})


@pytest.mark.parametrize("value", [[1.0], "text", 1.5, True, object()], ids=str)
def test_other_tensors(value):
    check(lambda out: strobe.attention(X, X, X, out=out), "out", out=value)
    tensors = {"d_o": X, "q": X, "k": X, "v": X, "o": X, "lse": LSE}
    for name in ("d_o", "o", "lse", "d_lse", "dq", "dk", "dv"):
        check(lambda **wrong: strobe.attention_backward(**tensors | wrong), name, **{name: value})


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


def test_options_that_calls_with_gradients_lack():
    q = torch.zeros(1, 8, 2, 16, requires_grad=True)
    with pytest.raises(TypeError) as caught:
        strobe.torch.attention(q, q, q, page_table=torch.zeros(1, 1, dtype=torch.int32))
    wanted = "page_table is no option of strobe.torch.attention: call strobe.attention, which has it, without gradients"
    assert str(caught.value) == wanted
