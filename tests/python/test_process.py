# SPDX-License-Identifier: Apache-2.0
"""Many calls, many threads, and processes that fork."""

import gc
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import children
import numpy as np
import pytest
import strobe
import torch


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_memory_does_not_grow(make):
    q, k, v = (make(draw(seed, 1, 32, 2, 16)) for seed in range(3))

    def calls(count):
        for _ in range(count):
            o, lse = strobe.attention(q, k, v, causal=True, return_lse=True, threads=1)
            strobe.attention_backward(o, q, k, v, o, lse, causal=True, threads=1)
            with pytest.raises(ValueError, match="chunk"):
                strobe.attention(q, k, v, chunk=-1)
        gc.collect()
        return resident_bytes()

    before = calls(500)
    assert calls(5000) - before < 2**20


def test_threads_at_once():
    inputs = [[draw(3 * index + x, 1, 200, 2, 32) for x in range(3)] for index in range(8)]
    wanted = [strobe.attention(*qkv, causal=True) for qkv in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            results = list(pool.map(lambda qkv: strobe.attention(*qkv, causal=True), inputs))
            assert all((a == b).all() for a, b in zip(results, wanted, strict=True))


def in_child(pipe, q, k, v):
    children.die_with_parent()
    pipe.send(strobe.attention(q, k, v, threads=4))
    pipe.send(strobe.attention_backward(*pipe.recv(), threads=4)[0])


def test_calls_after_fork():
    """The pool's threads stay behind in the parent; the child's results are the same."""
    q, k, v = (draw(seed, 2, 300, 4, 32) for seed in range(3))
    o, lse = strobe.attention(q, k, v, threads=4, return_lse=True)
    dq = strobe.attention_backward(o, q, k, v, o, lse, threads=4)[0]
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        ours, theirs = context.Pipe()
        child = context.Process(target=in_child, args=(theirs, q, k, v))
        child.start()
        assert ours.poll(120)
        assert (ours.recv() == o).all()
        ours.send((o, q, k, v, o, lse))
        assert ours.poll(120)
        assert (ours.recv() == dq).all()
        child.join(120)
        assert child.exitcode == 0
    assert (strobe.attention(q, k, v, threads=4) == o).all()
