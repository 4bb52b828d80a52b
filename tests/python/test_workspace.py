# SPDX-License-Identifier: Apache-2.0
"""The caller's allocator, as a GPU's tensors bring it; here in host memory."""

import pytest
import strobe
import torch
from strobe import _core
from strobe._frameworks import framework_of

ALIGNMENT = 64


@pytest.fixture
def call():
    """A backward that takes an allocator and gives dq, and dq as it must be."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 64, 2, 16) for _ in range(3))
    o, lse = strobe.attention(q, k, v, return_lse=True)
    wanted, *_ = strobe.attention_backward(o, q, k, v, o, lse)

    def run(allocate):
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        _core.backward(o, q, k, v, o, lse, None, dq, dk, dv, None, None, allocate)
        return dq

    return run, wanted


def test_workspace_comes_from_the_callers_allocator(call):
    run, wanted = call
    sizes = []

    def allocate(size):
        sizes.append(size)
        memory = torch.full((size + ALIGNMENT,), 255, dtype=torch.uint8)  # NaN, whatever it is read as
        start = -memory.data_ptr() % ALIGNMENT
        return memory[start : start + size]

    assert torch.equal(run(allocate), wanted)
    assert len(sizes) == 1
    assert sizes[0] > 0


def test_errors_of_the_allocator(call):
    run, _ = call

    def has_none(size):
        raise torch.OutOfMemoryError("the device is full")

    with pytest.raises(torch.OutOfMemoryError, match="the device is full"):
        run(has_none)
    with pytest.raises(MemoryError, match="allocate_workspace gave null for"):
        run(lambda size: None)
    with pytest.raises(TypeError, match="workspace is of type str: it must be a tensor"):
        run(str)


def test_the_library_allocates_on_the_cpu():
    tensor = torch.empty(1)
    assert framework_of(tensor).workspace_allocator(tensor, None) is None
