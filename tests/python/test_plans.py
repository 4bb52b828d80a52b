# SPDX-License-Identifier: Apache-2.0
"""Calls reuse the plans of equal calls: nothing but time may show it."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import strobe
import torch
from reference import attention


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# One differs from the other in one thing each, so that a plan that is taken for another shows.
OPTIONS = [
    {},
    {"scale": 0.0},
    {"scale": 0.3},
    {"causal": True},
    {"causal": "top_left"},
    {"window": (3, -1)},
    {"window": (-1, 3)},
    {"chunk": 4},
    {"softcap": 0.5},
    {"softcap": 0.25},
    {"dropout": 0.5, "seed": 1},
    {"dropout": 0.5, "seed": 2},
    {"dropout": 0.25, "seed": 1},
    {"alibi_slopes": draw(4, 2)},
    {"alibi_slopes": draw(5, 1, 2)},
    {"bias": draw(6, 1, 2, 11, 13)},
    {"bias": draw(7, 1, 1, 11, 13)},
    {"sink": draw(8, 2)},
    {"seqused_q": np.array([7], np.int32)},
    {"seqused_k": np.array([7], np.int32)},
    {"block_mask": np.zeros((1, 1, 1, 1), np.uint8)},
]


def results(q, k, v, options):
    o, lse, largest = strobe.attention(q, k, v, return_lse=True, return_max_logits=True, **options)
    return [o, lse, largest, *strobe.attention_backward(np.ones_like(o), q, k, v, o, lse, **options)]


def test_each_option_has_its_own_plan():
    q, k, v = draw(1, 1, 11, 2, 8), draw(2, 1, 13, 2, 8), draw(3, 1, 13, 2, 8)
    first = [results(q, k, v, options) for options in OPTIONS]
    assert len({tuple(o.tobytes() for o in outputs) for outputs in first}) == len(OPTIONS)
    for options, wanted in reversed(list(zip(OPTIONS, first, strict=True))):
        for a, b in zip(results(q, k, v, options), wanted, strict=True):
            assert a.tobytes() == b.tobytes()
    np.testing.assert_allclose(first[0][0], attention(q, k, v)[0], rtol=1e-5, atol=1e-5)


def test_more_shapes_than_are_kept():
    q, k, v = (draw(seed, 2, 700, 2, 8) for seed in range(3))
    whole = {}
    for seqlen in [*range(1, 700, 2), *range(699, 0, -2)]:
        o = strobe.attention(*(x[:, :seqlen] for x in (q, k, v)), causal=True)
        assert o.tobytes() == whole.setdefault(seqlen, o).tobytes()
    np.testing.assert_allclose(whole[699][:, :301], whole[301], rtol=1e-5, atol=1e-5)


def test_pointers_and_strides_are_each_calls_own():
    q, k, v = (draw(seed, 2, 9, 9, 8) for seed in range(3))
    for _ in range(2):
        wanted = strobe.attention(q, k, v)
        for order in ((0, 1, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3)):
            moved = [np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order)) for x in (q, k, v)]
            assert (strobe.attention(*moved) == wanted).all()
        with pytest.raises(ValueError, match="q has stride 2 on its last axis: it must be 1"):
            strobe.attention(np.stack([q, q], -1)[..., 0], k, v)
        with pytest.raises(ValueError, match="out is read-only: it must be writable"):
            locked = np.empty_like(q)
            locked.flags.writeable = False
            strobe.attention(q, k, v, out=locked)


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_plans_hold_no_tensors(make):
    tensors = [make(draw(seed, 1, 17, 3, 8)) for seed in range(3)]
    tensors += strobe.attention(*tensors, return_lse=True, bias=make(draw(3, 1, 1, 17, 17)))
    references = [weakref.ref(x) for x in tensors]
    tensors.clear()
    gc.collect()
    assert all(reference() is None for reference in references)


def test_threads_plan_at_once():
    """Every call has a shape of its own, and its neighbours' threads plan the same one."""
    q, k, v = (draw(seed, 1, 600, 1, 16) for seed in range(3))
    lengths = [length for length in range(400, 600) for _ in range(4)]

    def call(length):
        return strobe.attention(*(x[:, :length] for x in (q, k, v)), causal=True, threads=1)

    with ThreadPoolExecutor(8) as pool:
        for length, o in zip(lengths, pool.map(call, lengths), strict=True):
            np.testing.assert_allclose(o[0, 0, 0], v[0, 0, 0], rtol=1e-6)
            assert (o == call(length)).all()
