# SPDX-License-Identifier: Apache-2.0
"""Options as NumPy's scalars are Python's own; what is of the wrong kind is refused by one line that names it."""

import jax
import numpy as np
import pytest
import strobe
import strobe.jax

SAME = [
    ({"causal": np.bool_(True)}, {"causal": True}),
    ({"causal": np.array(True)}, {"causal": True}),
    ({"causal": jax.numpy.bool_(True)}, {"causal": True}),
    ({"causal": np.bool_(False)}, {}),
    ({"causal": np.str_("top_left")}, {"causal": "top_left"}),
    ({"scale": np.float32(0.25)}, {"scale": 0.25}),
    ({"scale": np.float64(0.25)}, {"scale": 0.25}),
    ({"scale": np.int64(2)}, {"scale": 2.0}),
    ({"softcap": np.float16(3)}, {"softcap": 3.0}),
    ({"window": (np.int64(3), np.int8(0))}, {"window": (3, 0)}),
    ({"window": np.array([3, 0])}, {"window": (3, 0)}),
    ({"chunk": np.uint16(4)}, {"chunk": 4}),
    ({"dropout": np.float32(0.25), "seed": np.int64(1)}, {"dropout": 0.25, "seed": 1}),
    ({"deterministic": np.bool_(True), "row_invariant": np.bool_(True)}, {"row_invariant": True}),
    ({"threads": np.int32(1)}, {"threads": 1}),
]


@pytest.fixture
def qkv():
    return list(np.random.default_rng(2).standard_normal((3, 2, 20, 2, 16), np.float32))


@pytest.mark.parametrize(("given", "plain"), SAME)
def test_numpy_scalars(qkv, given, plain):
    wanted = strobe.attention(*qkv, **plain)
    assert (strobe.attention(*qkv, **given) == wanted).all()
    assert (strobe.jax.attention(*qkv, **given) == strobe.jax.attention(*qkv, **plain)).all()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"scale": True}, TypeError, "scale is of type bool: it must be a number"),
        ({"scale": np.bool_(True)}, TypeError, "scale is of type bool: it must be a number"),
        ({"scale": 1j}, TypeError, "scale is of type complex: it must be a number"),
        ({"scale": 1e300}, ValueError, "scale is 1e+300: it must be in the range of float32"),
        ({"scale": 10**400}, ValueError, "scale is beyond the range of floating-point numbers"),
        ({"chunk": True}, TypeError, "chunk is of type bool: it must be an integer"),
        ({"chunk": 2**63}, ValueError, "chunk is 9223372036854775808: it must fit 64 bits"),
        ({"window": (True, 0)}, TypeError, "window is of type bool: it must be an integer"),
        ({"threads": 2**40}, ValueError, "threads is 1099511627776: it must fit 32 bits"),
        ({"deterministic": np.int64(1)}, TypeError, "deterministic is of type int64: it must be True or False"),
    ],
)
def test_wrong_scalars(qkv, given, error, message):
    for call in (strobe.attention, strobe.jax.attention):
        with pytest.raises(error) as caught:
            call(*qkv, **given)
        assert str(caught.value) == message


def test_masked_arrays_are_refused(qkv):
    masked = np.ma.masked_array(qkv[0], mask=qkv[0] > 0)
    message = "q is a masked array, whose mask no call reads"
    for call in (strobe.attention, strobe.quantize, strobe.plan_quantization):
        with pytest.raises(TypeError, match=message):
            call(masked, *qkv[1:])
    with pytest.raises(TypeError, match="o is a masked array"):
        strobe.attention(*qkv, out=masked)
    with pytest.raises(TypeError, match="q is of type MaskedArray: it must be an array of JAX or NumPy"):
        strobe.jax.attention(masked, *qkv[1:])
    with pytest.raises(TypeError, match="bias is of type MaskedArray"):
        strobe.jax.attention(*qkv, bias=np.ma.zeros((1, 1, 20, 20), np.float32))


def test_kinds_of_plain_arrays_are_read(qkv, tmp_path):
    wanted = strobe.attention(*qkv)
    mapped = np.memmap(tmp_path / "q", np.float32, "w+", shape=qkv[0].shape)
    mapped[:] = qkv[0]
    assert (strobe.attention(mapped, *qkv[1:]) == wanted).all()
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=qkv[0].shape)
    assert (strobe.attention(*qkv, out=out) == wanted).all()


def test_jax_names_what_is_wrong(qkv):
    for name, value, error, message in (
        ("bias", 1.0, TypeError, "bias is of type float: it must be an array of JAX or NumPy"),
        ("seqused_k", np.array([1, 2]), ValueError, "seqused_k is int64: it must be int32"),
        ("sink", np.zeros(2), ValueError, "sink is float64: it must be float32"),
    ):
        with pytest.raises(error) as caught:
            strobe.jax.attention(*qkv, **{name: value})
        assert str(caught.value) == message
    with pytest.raises(TypeError, match="k is of type list: it must be an array of JAX or NumPy"):
        strobe.jax.attention(qkv[0], [1.0], qkv[2])
    with pytest.raises(TypeError, match=r"softcap is traced, .*: give a number, or name it in the static_argnames of"):
        jax.jit(lambda softcap: strobe.jax.attention(*qkv, softcap=softcap))(2.0)


def test_masks_refuse_wrong_sizes():
    for call in (strobe.butterfly_block_mask, strobe.local_block_mask):
        with pytest.raises(ValueError, match="seqlen_q is -1: it must be 0 or more"):
            call(-1, 5)
        with pytest.raises(ValueError, match="seqlen_k is -300: it must be 0 or more"):
            call(5, -300)
        with pytest.raises(TypeError, match="seqlen_k is of type float: it must be an integer"):
            call(5, 1.5)
        assert call(np.int64(300), 0).shape == (1, 1, 3, 0)
    with pytest.raises(TypeError, match="stride is of type float: it must be an integer"):
        strobe.strided_block_mask(5, 5, stride=1.5)
    with pytest.raises(TypeError, match="left is of type str: it must be an integer"):
        strobe.local_block_mask(5, 5, left="1")
    with pytest.raises(TypeError, match="dropout is of type str: it must be a number"):
        strobe.dropout_mask((1, 1, 2, 2), "0.5")
    with pytest.raises(ValueError, match="seed is -1: it must be from 0 to"):
        strobe.dropout_mask((1, 1, 2, 2), 0.5, seed=-1)


def test_shapes_of_plans_are_checked():
    shape = (1, 8, 2, 16)
    with pytest.raises(TypeError, match="an extent of a shape is of type float: it must be an integer"):
        strobe.explain((1.5, 8, 2, 16), shape, shape)
    with pytest.raises(ValueError, match="a device's index is 99999999999: it must fit 32 bits"):
        strobe.explain(shape, shape, shape, device="cuda:99999999999")
    with pytest.raises(
        ValueError, match=r"q has shape \[1, 4611686018427387904, 4611686018427387904, 16\]: it must span"
    ):
        strobe.explain((1, 2**62, 2**62, 16), shape, shape)
    with pytest.raises(ValueError, match="q_descale is not given"):
        strobe.explain(shape, shape, (5,), dtype="int8", out_dtype="float32")


def test_scales_of_no_rows(qkv):
    """One scale a head, as the header says, and attention takes it."""
    q = qkv[0][:, :0]
    for unit in ("head", "block", "group", "row"):
        x = strobe.quantize(q, q, q, q_scales=unit, k_scales=unit, v_scales=unit)
        assert x.q_descale.shape == x.k_descale.shape == x.v_descale.shape == (2, 2, 1)
        assert strobe.attention(x.q, x.k, x.v, **x.options).shape == (2, 0, 2, 16)


def test_eight_bit_options_have_no_backward(qkv):
    o, lse = strobe.attention(*qkv, return_lse=True)
    with pytest.raises(NotImplementedError, match="k_descale is given: 8-bit inputs have no backward"):
        strobe.attention_backward(o, *qkv, o, lse, k_descale=np.ones((1, 1, 1), np.float32))
