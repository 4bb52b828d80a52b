# SPDX-License-Identifier: Apache-2.0
"""strobe.attention on NumPy arrays: every option against float64, and what else the package offers."""

import os
import re
import sys
from itertools import pairwise

import children
import ml_dtypes
import numpy as np
import pytest
import reference
import strobe

BATCH, SEQLEN_Q, SEQLEN_K, HEADS, HEADS_K, HEAD_DIM = 2, 70, 150, 4, 2, 24


def draw(generator, *shape):
    return generator.standard_normal(shape, dtype=np.float32)


@pytest.fixture
def generator():
    return np.random.default_rng(1)


@pytest.fixture
def qkv(generator):
    q = draw(generator, BATCH, SEQLEN_Q, HEADS, HEAD_DIM)
    k = draw(generator, BATCH, SEQLEN_K, HEADS_K, HEAD_DIM)
    v = draw(generator, BATCH, SEQLEN_K, HEADS_K, 16)
    return q, k, v


def options():
    generator = np.random.default_rng(2)
    masked = draw(generator, 1, HEADS, SEQLEN_Q, SEQLEN_K)
    masked[..., ::3] = -np.inf
    blocks = np.array([1, 0, 1, 1, 1, 0], np.uint8).reshape(1, 1, 2, 3)
    return {
        "none": {},
        "scale": {"scale": 0.3},
        "causal": {"causal": True},
        "top_left": {"causal": "top_left"},
        "window": {"window": (20, 5)},
        "chunk": {"chunk": 32, "causal": True},
        "softcap": {"softcap": 2.0},
        "alibi": {"alibi_slopes": draw(generator, HEADS) ** 2},
        "alibi per batch": {"alibi_slopes": draw(generator, BATCH, HEADS), "causal": True},
        "bias": {"bias": draw(generator, BATCH, 1, SEQLEN_Q, SEQLEN_K)},
        "bias of -inf": {"bias": masked},
        "sink": {"sink": draw(generator, HEADS)},
        "block_mask": {"block_mask": blocks, "block_size": 64},
        "bool block_mask": {"block_mask": blocks.astype(bool), "block_size": 64},
        "all": {
            "causal": True,
            "window": (60, -1),
            "softcap": 5.0,
            "scale": 0.2,
            "alibi_slopes": draw(generator, HEADS) ** 2,
            "bias": draw(generator, 1, 1, SEQLEN_Q, SEQLEN_K),
            "sink": draw(generator, HEADS),
            "block_mask": blocks,
            "block_size": 64,
        },
    }


@pytest.mark.parametrize("name", options())
def test_option(qkv, name):
    given = options()[name]
    o, lse, max_logits = strobe.attention(*qkv, return_lse=True, return_max_logits=True, **given)
    expected = reference.attention(*qkv, **given)
    for result, wanted in zip((o, lse, max_logits), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5)


def test_dropout(qkv):
    keep = strobe.dropout_mask((BATCH, HEADS, SEQLEN_Q, SEQLEN_K), 0.3, seed=5, offset=7)
    assert abs(keep.mean() - 0.7) < 0.01
    o, lse = strobe.attention(*qkv, dropout=0.3, seed=5, offset=7, return_lse=True)
    wanted, wanted_lse, _ = reference.attention(*qkv, dropout=0.3, keep=keep)
    np.testing.assert_allclose(o, wanted, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, wanted_lse, rtol=2e-5, atol=2e-5)
    assert (strobe.attention(*qkv, dropout=0.3, seed=6, offset=7) != o).any()
    state = np.array([5, 7], np.uint64).view(np.int32)  # where the engine reads it
    assert (strobe.attention(*qkv, dropout=0.3, random_state=state) == o).all()


def test_gradients_by_central_differences(qkv, generator):
    """Of a loss through out and lse, along random directions, for q, k, v, bias and sink at once."""
    bias, sink = draw(generator, 1, HEADS, SEQLEN_Q, SEQLEN_K), draw(generator, HEADS)
    d_o, d_lse = draw(generator, BATCH, SEQLEN_Q, HEADS, 16), draw(generator, BATCH, HEADS, SEQLEN_Q)
    given = {"causal": True, "softcap": 4.0}
    inputs = [*qkv, bias, sink]

    def loss(q, k, v, bias, sink):
        o, lse, _ = reference.attention(q, k, v, bias=bias, sink=sink, **given)
        return (o * d_o).sum() + (lse * d_lse).sum()

    o, lse = strobe.attention(*qkv, bias=bias, sink=sink, return_lse=True, **given)
    gradients = strobe.attention_backward(
        d_o, *qkv, o, lse, d_lse=d_lse, bias=bias, sink=sink, return_d_bias=True, return_d_sink=True, **given
    )
    assert [g.shape for g in gradients] == [x.shape for x in inputs]
    for index, gradient in enumerate(gradients):
        direction = draw(generator, *inputs[index].shape).astype(np.float64)
        ends = [[*inputs[:index], inputs[index] + sign * direction, *inputs[index + 1 :]] for sign in (1e-5, -1e-5)]
        difference = (loss(*ends[0]) - loss(*ends[1])) / 2e-5
        size = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs((gradient * direction).sum() - difference) < 1e-5 * size


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision(qkv, dtype):
    half = [x.astype(dtype) for x in qkv]
    o = strobe.attention(*half)
    assert o.dtype == dtype
    wanted = reference.attention(*half)[0]
    assert abs(o.astype(np.float64) - wanted).max() < 2 * float(ml_dtypes.finfo(dtype).eps) * abs(wanted).max()


def test_packed_and_used(generator):
    lengths = [5, 0, 40, 17]
    cu_seqlens = np.cumsum([0, *lengths]).astype(np.int32)
    q, k, v = (draw(generator, sum(lengths), HEADS, HEAD_DIM) for _ in range(3))
    packed = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": 40, "max_seqlen_k": 40}
    o, lse, max_logits = strobe.attention(q, k, v, causal=True, return_lse=True, return_max_logits=True, **packed)
    assert lse.shape == (HEADS, sum(lengths))
    assert max_logits.shape == (len(lengths), HEADS)
    for start, end in pairwise(cu_seqlens):
        alone = strobe.attention(*(x[None, start:end] for x in (q, k, v)), causal=True)
        np.testing.assert_allclose(o[start:end], alone[0], rtol=1e-6, atol=1e-6)
    batched = [x[:60].reshape(2, 30, HEADS, HEAD_DIM) for x in (q, k, v)]
    used = strobe.attention(*batched, seqused_k=np.array([10, 30], np.int32))
    np.testing.assert_allclose(
        used[0],
        strobe.attention(*(x[:1] for x in batched[:1]), *(x[:1, :10] for x in batched[1:]))[0],
        rtol=1e-6,
        atol=1e-6,
    )


def test_rows_behind_the_last_length_are_zero(generator):
    q, k, v = (draw(generator, 50, HEADS, HEAD_DIM) for _ in range(3))
    ends = np.array([0, 10, 40], np.int32)
    o, lse = strobe.attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, return_lse=True)
    wanted = strobe.attention(*(x[:40] for x in (q, k, v)), cu_seqlens_q=ends, cu_seqlens_k=ends)
    np.testing.assert_allclose(o[:40], wanted, rtol=1e-6, atol=1e-6)
    assert not o[40:].any()
    assert (lse[:, 40:] == -np.inf).all()


def test_results_are_those_asked_for(qkv):
    out = np.empty((BATCH, SEQLEN_Q, HEADS, 16), np.float32)
    assert strobe.attention(*qkv, out=out) is out
    assert len(strobe.attention(*qkv, return_lse=True)) == 2
    assert strobe.attention(*qkv, return_max_logits=True)[1].shape == (BATCH, HEADS)
    o, lse = strobe.attention(*qkv, return_lse=True)
    dq = np.empty_like(qkv[0])
    gradients = strobe.attention_backward(o, *qkv, o, lse, dq=dq)
    assert gradients[0] is dq
    assert len(gradients) == 3


def test_threads_and_none_change_nothing(qkv):
    one = strobe.attention(*qkv, threads=1)
    assert (strobe.attention(*qkv, threads=7) == one).all()
    nothing = dict.fromkeys(strobe.Options.__annotations__)
    assert (strobe.attention(*qkv, **nothing) == one).all()


def test_block_masks():
    assert strobe.local_block_mask(512, 512, left=1, right=0).tolist() == [
        [[[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]]
    ]
    assert strobe.strided_block_mask(256, 256, stride=2, block_size=64)[0, 0, 0].tolist() == [1, 0, 1, 0]
    assert strobe.butterfly_block_mask(1024, 1024)[0, 0, 5].tolist() == [0, 1, 0, 0, 1, 1, 0, 1]
    assert strobe.local_block_mask(130, 70, block_size=64).shape == (1, 1, 3, 2)


def test_explain_and_info():
    shape = (1, 8192, 16, 128)
    assert "engine        cpu" in strobe.explain(shape, shape, shape, dtype="bfloat16")
    assert "dQ" in strobe.explain(shape, shape, shape, backward=True)
    array = np.zeros((1, 8, 2, 16), np.float32)
    assert strobe.explain(array, array, array) == strobe.explain(*[array.shape] * 3)
    info = strobe.info()
    assert info["version"] == strobe.__version__
    assert info["engines"]["cpu"] == "available"
    assert set(info["engines"]) == {"cpu", "gpu"}
    texts = {"driver", "compiled_ahead", "kernel_cache"}
    lists = {"devices", "installed_kernels", "compiler", "tuned_choices"}
    assert set(info["gpu"]) == {*texts, *lists}
    assert all(isinstance(info["gpu"][name], str) for name in texts)
    assert all(isinstance(info["gpu"][name], list) for name in lists)
    assert re.match(r"\d+ kernels, by NVRTC |none: ", info["gpu"]["compiled_ahead"])


def test_info_names_packs_of_kernels(tmp_path):
    damaged = tmp_path / "damaged.archive"
    damaged.write_text("no archive")
    program = "import strobe; print(*strobe.info()['gpu']['installed_kernels'])"
    said = children.run([sys.executable, "-c", program], env={**os.environ, "STROBE_KERNELS": str(damaged)})
    assert said.stdout == f"{damaged}: not used: the kernel archive is damaged\n"
