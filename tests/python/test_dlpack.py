# SPDX-License-Identifier: Apache-2.0
"""Tensors as their frameworks hand them over: whatever their layout, without a copy, or rejected."""

import ml_dtypes
import numpy as np
import pytest
import strobe
import torch


@pytest.fixture
def qkv():
    generator = np.random.default_rng(3)
    return [generator.standard_normal((2, 40, 4, 16), dtype=np.float32) for _ in range(3)]


class Producer:
    """An array that speaks DLPack and nothing else, of the version given; None: from before versions."""

    def __init__(self, array, version=(1, 0)):
        self.array, self.version, self.calls = array, version, 0

    shape = property(lambda self: self.array.shape)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords):
        self.calls += 1
        if self.version is None:
            if "max_version" in keywords:
                raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
            return self.array.__dlpack__()
        return self.array.__dlpack__(max_version=self.version)


@pytest.mark.parametrize("version", [(1, 0), None])
def test_any_producer(qkv, version):
    out = np.zeros_like(qkv[0])
    producers = [Producer(x, version) for x in qkv]
    strobe.attention(*producers, out=Producer(out, version))
    assert (out == strobe.attention(*qkv)).all()
    assert producers[0].calls == (1 if version else 2)


def test_a_producer_that_cannot_make_outputs_is_asked_for_them(qkv):
    with pytest.raises(TypeError, match="q is of type Producer, of which Strobe can make none: give outputs"):
        strobe.attention(*(Producer(x) for x in qkv))


def test_a_failing_producer_is_heard(qkv):
    class Broken(Producer):
        def __dlpack__(self, **keywords):
            raise BufferError("its memory is gone")

    with pytest.raises(BufferError, match="its memory is gone"):
        strobe.attention(Broken(qkv[0]), *qkv[1:], out=np.zeros_like(qkv[0]))


def test_layouts_are_read_in_place(qkv):
    wanted = strobe.attention(*qkv)
    by_heads = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in qkv]
    wide = np.zeros((2, 40, 4, 3, 20), np.float32)
    for index, x in enumerate(qkv):
        wide[..., index, 2:18] = x
    interleaved = [wide[..., index, 2:18] for index in range(3)]
    steps = [x.repeat(2, axis=1)[:, ::2] for x in qkv]
    for layout in (by_heads, interleaved, steps):
        assert not layout[0].flags.c_contiguous
        assert (strobe.attention(*layout) == wanted).all()
    out = np.zeros((4, 2, 40, 16), np.float32).transpose(1, 2, 0, 3)
    assert strobe.attention(*qkv, out=out) is out
    assert (out == wanted).all()


def test_shared_keys_by_a_stride_of_zero(qkv):
    q, k, v = qkv
    shared = [np.broadcast_to(x[:1], x.shape) for x in (k, v)]
    assert (strobe.attention(q, *shared) == strobe.attention(q, *(x.copy() for x in shared))).all()


def test_tensors_without_elements():
    def empty(*shape):
        return np.empty(shape, np.float32)

    assert strobe.attention(empty(0, 8, 4, 16), empty(0, 8, 4, 16), empty(0, 8, 4, 16)).shape == (0, 8, 4, 16)
    assert strobe.attention(empty(2, 0, 4, 16), empty(2, 8, 4, 16), empty(2, 8, 4, 16)).shape == (2, 0, 4, 16)
    out, lse = strobe.attention(np.ones((2, 3, 4, 16), np.float32), *[empty(2, 0, 4, 16)] * 2, return_lse=True)
    assert (out == 0).all()
    assert (lse == -np.inf).all()
    assert torch.equal(strobe.attention(*[torch.empty(0, 8, 4, 16)] * 3), torch.empty(0, 8, 4, 16))


def test_read_only_inputs_are_read(qkv):
    wanted = strobe.attention(*qkv)
    for x in qkv:
        x.flags.writeable = False
    assert (strobe.attention(*qkv) == wanted).all()
    out = np.empty_like(wanted)
    strobe.attention(*(Producer(x) for x in qkv), out=out)
    assert (out == wanted).all()


def test_read_only_outputs_are_rejected(qkv):
    out = np.zeros_like(qkv[0])
    out.flags.writeable = False
    for given in (out, Producer(out)):
        with pytest.raises(ValueError, match="out is read-only: it must be writable"):
            strobe.attention(*qkv, out=given)


def test_elements_that_lie_apart_are_rejected(qkv):
    packed = np.zeros((2, 40, 4, 16), np.dtype([("value", np.float32), ("tag", np.uint8)]))
    with pytest.raises(ValueError, match="q has a stride of 5 bytes on axis 3: it must be a multiple"):
        strobe.attention(packed["value"], *qkv[1:])


def test_other_devices_are_rejected(qkv):
    with pytest.raises(ValueError, match="q is on meta: it must be on the cpu or on a CUDA device"):
        strobe.attention(*(torch.from_numpy(x).to("meta") for x in qkv))


def test_torch_tensors(qkv):
    wanted = torch.from_numpy(strobe.attention(*qkv))
    tensors = [torch.from_numpy(x) for x in qkv]
    assert torch.equal(strobe.attention(*tensors), wanted)
    assert torch.equal(strobe.attention(*(torch.nn.Parameter(x, requires_grad=False) for x in tensors)), wanted)
    out = torch.empty(2, 4, 40, 16).transpose(1, 2)
    assert strobe.attention(*tensors, out=out) is out
    assert torch.equal(out, wanted)
    half = strobe.attention(*(x.bfloat16() for x in tensors))
    assert half.dtype == torch.bfloat16
    numpy_half = strobe.attention(*(x.astype(ml_dtypes.bfloat16) for x in qkv))
    assert (half.float().numpy() == numpy_half.astype(np.float32)).all()


def test_torch_tensors_that_require_gradients_are_rejected(qkv):
    tensors = [torch.from_numpy(x) for x in qkv]
    tensors[1].requires_grad_()
    with pytest.raises(ValueError, match="k requires a gradient, which strobe"):
        strobe.attention(*tensors)
    with torch.no_grad():
        strobe.attention(*tensors)


def test_numpy_and_torch_mix(qkv):
    q, k, v = qkv
    assert (strobe.attention(q, torch.from_numpy(k), v) == strobe.attention(q, k, v)).all()
