# SPDX-License-Identifier: Apache-2.0
"""strobe.quantize and attention on its result: every framework's tensors give the same bits, close to float64."""

import jax
import ml_dtypes
import numpy as np
import pytest
import reference
import strobe
import strobe.torch
import torch

ELEMENTS = ("int8", "float8_e4m3fn")
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
# Root mean square errors of O for entries N(0, 1) and 130 keys: int8 and e4m3 give 1.8e-3 and 6.8e-3.
MOST_ERROR = {"int8": 2.5e-3, "float8_e4m3fn": 9e-3}


@pytest.fixture
def qkv():
    generator = np.random.default_rng(7)
    shapes = ((2, 100, 4, 64), (2, 130, 2, 64), (2, 130, 2, 48))
    return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]


def bits(x):
    """An array of any framework as bytes."""
    if isinstance(x, torch.Tensor):
        return x.contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(np.asarray(x)).view(np.uint8)


def call(x, **options):
    return strobe.attention(x.q, x.k, x.v, return_lse=True, **x.options, **options)


@pytest.mark.parametrize("score", ["score / 2", "2 * tanh(score) + 0.1 * score", "abs(score)", "score / (2 + head)"])
def test_texts_see_the_keys_as_they_were(qkv, score):
    q, k, v = qkv
    k += 1.5 * np.random.default_rng(8).standard_normal((1, 1, 2, 64), dtype=np.float32)
    o, lse = call(strobe.quantize(q, k, v), score=score)
    wanted, wanted_lse = strobe.attention(q, k, v, score=score, return_lse=True)
    assert np.sqrt(np.square(o - wanted).mean()) < 2 * MOST_ERROR["int8"]
    np.testing.assert_allclose(lse, wanted_lse, atol=0.1)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("causal", [False, True])
def test_close_to_float64(qkv, element, causal):
    x = strobe.quantize(*qkv, element=element)
    assert x.q.dtype.name == x.k.dtype.name == x.v.dtype.name == element
    assert x.v.shape == (2, 2, 48, 160)
    assert (x.q_descale.shape, x.k_descale.shape, x.v_descale.shape) == ((2, 4, 100), (2, 2, 5), (2, 2, 130))
    o, lse = call(x, causal=causal)
    wanted, wanted_lse, _ = reference.attention(*qkv, causal=causal)
    assert o.dtype == np.float32
    assert np.sqrt(np.square(o - wanted).mean()) < MOST_ERROR[element] * (4 if causal else 1)
    np.testing.assert_allclose(lse, wanted_lse, atol=0.3)


@pytest.mark.parametrize("unit", ["tensor", "head", "block", "group", "row"])
@pytest.mark.parametrize("rotate", [False, True])
def test_elements_times_scales_are_the_tensors(qkv, unit, rotate):
    """With neither rotation nor centring q8 * q_descale is q, within half a step."""
    units = {f"{name}_scales": unit for name in "qkv"}
    x = strobe.quantize(*qkv, **units, rotate_qk=rotate, rotate_v=rotate, center_k=False, seed=3)
    assert x.q_shift is None
    assert "q_shift" not in x.options
    assert x.v_rotation == (3 if rotate else None)
    rows = {"tensor": 100, "head": 100, "block": 128, "group": 32, "row": 1}[unit]
    scales = np.broadcast_to(x.q_descale, (2, 4, x.q_descale.shape[2])).repeat(rows, axis=2)[..., :100]
    widened = x.q * scales.transpose(0, 2, 1)[..., None]
    if rotate:
        np.testing.assert_allclose(np.square(widened).sum(), np.square(qkv[0]).sum(), rtol=1e-2)
    else:
        assert (abs(widened - qkv[0]) <= 0.51 * scales.transpose(0, 2, 1)[..., None]).all()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_frameworks_agree(qkv, element, dtype):
    tensors = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in qkv]
    from_torch = strobe.quantize(*tensors, element=getattr(torch, element))
    assert from_torch.q.dtype == getattr(torch, element)
    arrays = [jax.numpy.asarray(x).astype(dtype) for x in qkv]
    from_jax = strobe.quantize(*arrays, element=element)
    from_numpy = strobe.quantize(*(np.asarray(x) for x in arrays), element=element)
    for name in ("q", "k", "v", "q_descale", "k_descale", "v_descale", "q_shift"):
        wanted = bits(getattr(from_numpy, name))
        np.testing.assert_array_equal(bits(getattr(from_torch, name)), wanted)
        np.testing.assert_array_equal(bits(getattr(from_jax, name)), wanted)
    for results in zip(call(from_numpy), call(from_torch), call(from_jax), strict=True):
        np.testing.assert_array_equal(bits(results[1]), bits(results[0]))
        np.testing.assert_array_equal(bits(results[2]), bits(results[0]))
    assert call(from_torch)[0].dtype == tensors[0].dtype


def test_jit_and_vmap(qkv):
    def both(q, k, v):
        x = strobe.quantize(q, k, v, seed=2**64 - 1)
        return strobe.attention(x.q, x.k, x.v, **x.options), x

    o, x = jax.jit(both)(*qkv)
    eager = strobe.quantize(*qkv, seed=2**64 - 1)
    assert isinstance(x, strobe.Quantized)
    assert x.v_rotation == 2**64 - 1
    np.testing.assert_array_equal(o, call(eager)[0])
    stacked = jax.vmap(lambda *qkv: both(*qkv)[0])(*(jax.numpy.stack([x, x]) for x in qkv))
    np.testing.assert_array_equal(stacked[1], o)


@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16", torch.float16, torch.bfloat16])
def test_output_dtype(qkv, out_dtype):
    x = strobe.quantize(*(torch.from_numpy(x) for x in qkv))
    o = strobe.attention(x.q, x.k, x.v, **x.options | {"out_dtype": out_dtype})
    assert str(o.dtype).endswith(str(out_dtype).removeprefix("torch."))
    wanted = call(x)[0].to(o.dtype)
    assert torch.equal(o, wanted)
    assert torch.equal(strobe.torch.attention(x.q, x.k, x.v, **x.options | {"out_dtype": out_dtype}), wanted)


def test_out_and_strides(qkv):
    x = strobe.quantize(*(np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in qkv))
    out = np.empty((2, 4, 100, 48), np.float32).transpose(0, 2, 1, 3)
    o = strobe.attention(x.q, x.k, x.v, out=out, **x.options)
    assert o is out
    np.testing.assert_array_equal(out, call(strobe.quantize(*qkv))[0])


def test_scales_of_ones_own():
    """FlashAttention-3's: one scale a batch entry and key head."""
    generator = np.random.default_rng(1)
    q, k = (generator.integers(-127, 128, (2, 40, 2, 32), np.int8) for _ in range(2))
    v = generator.integers(-127, 128, (2, 2, 16, 64), np.int8)
    v[..., 40:] = 0
    v[..., 32:] = 0  # keys 32 to 39 of 40 have no value, so that their order does not matter
    scales = {name: np.full((2, 2, 1), 0.01, np.float32) for name in ("q_descale", "k_descale", "v_descale")}
    o = strobe.attention(q, k, v, out_dtype="float32", **scales)
    position = [16 * (i // 16) + 4 * (i % 8 // 2) + 2 * (i % 16 // 8) + i % 2 for i in range(32)]
    values = np.zeros((2, 40, 2, 16))
    values[:, :32] = v[..., position].transpose(0, 3, 1, 2)
    wanted, _, _ = reference.attention(q * 0.01, k * 0.01, values * 0.01)
    np.testing.assert_allclose(o, wanted, atol=5e-3)


def test_explain(qkv):
    x = strobe.quantize(*qkv)
    assert "8-bit inputs  int8" in strobe.explain(x.q, x.k, x.v, **x.options)


def test_float8_without_ml_dtypes_name(qkv):
    x = strobe.quantize(*qkv, element=ml_dtypes.float8_e4m3fn)
    assert x.q.dtype == FLOAT8


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(element="int4"), ValueError, 'element is "int4": it must be "int8" or "float8_e4m3fn"'),
        (dict(q_scales="rows"), ValueError, 'q_scales is "rows": it must be one of tensor, head, block, group, row'),
        (dict(seed=-1), ValueError, "seed is -1: it must be from 0 to 2"),
        (dict(rotate_v=1), TypeError, "rotate_v is of type int: it must be True or False"),
        (dict(q=np.zeros((2, 100, 64), np.float32)), ValueError, "q has rank 3: it must be"),
        (dict(k=np.zeros((1, 130, 2, 64), np.float32)), ValueError, "k has shape .* batch and head_dim must be equal"),
        (dict(v=np.zeros((2, 130, 2, 48), np.float64)), ValueError, "v is float64: it must be q's dtype"),
        (dict(q=3.0), TypeError, "q is of type float: it must be a tensor"),
        (dict(engine="gpu"), NotImplementedError, "the gpu engine takes tensors on a CUDA device"),
    ],
)
def test_misuse(qkv, change, error, message):
    arguments = dict(zip("qkv", qkv, strict=True)) | change
    with pytest.raises(error, match=message):
        strobe.quantize(**arguments)


def test_misuse_of_attention(qkv):
    x = strobe.quantize(*qkv)
    with pytest.raises(ValueError, match="q is int8: give out, or out_dtype"):
        strobe.attention(x.q, x.k, x.v, q_descale=x.q_descale)
    with pytest.raises(ValueError, match="q_descale is not given: 8-bit inputs need scales"):
        strobe.attention(x.q, x.k, x.v)
    with pytest.raises(ValueError, match="out_dtype is given, but q is float32"):
        strobe.attention(*qkv, out_dtype="float32")
    with pytest.raises(ValueError, match="out_dtype is given, but q is float32"):
        strobe.attention(*map(torch.from_numpy, qkv), out_dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="out is float8_e4m3: it must be float32, float16 or bfloat16"):
        strobe.attention(x.q, x.k, x.v, **x.options | {"out_dtype": "float8_e4m3fn"})
    with pytest.raises(ValueError, match="q_shift is given, but q is float32"):
        strobe.attention(*qkv, q_shift=x.q_shift)


def test_no_gradients(qkv):
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in qkv)
    with pytest.raises(ValueError, match="q requires a gradient, which 8-bit tensors do not have: detach it"):
        strobe.quantize(q, k, v)
    with torch.no_grad():
        x = strobe.quantize(q, k, v)
    sink = torch.zeros(4, requires_grad=True)
    with pytest.raises(NotImplementedError, match="q_descale is given: calls on 8 bits have neither gradients"):
        strobe.torch.attention(x.q, x.k, x.v, sink=sink, **x.options)
    stored = {"k_descale": torch.ones(1, 1, 1), "v_descale": torch.ones(1, 1, 1)}  # of keys beside a q that is recorded
    with pytest.raises(NotImplementedError, match="k_descale is given: calls on 8 bits have neither gradients"):
        strobe.torch.attention(q, *(x.to(torch.int8) for x in (k.detach(), v.detach())), **stored)
    with pytest.raises(NotImplementedError, match="8-bit tensors have no gradients"):
        jax.grad(lambda q: strobe.quantize(q, *qkv[1:]).q_descale.sum())(qkv[0])
    y = strobe.quantize(*(jax.numpy.asarray(a) for a in qkv))
    with pytest.raises(NotImplementedError, match="calls of 8-bit tensors have no gradients"):
        jax.grad(lambda sink: strobe.attention(y.q, y.k, y.v, sink=sink, **y.options).sum())(jax.numpy.zeros(4))


def test_autocast_leaves_float8_alone(qkv):
    x = strobe.quantize(*(torch.from_numpy(x) for x in qkv), element="float8_e4m3fn")
    with torch.autocast("cpu"):
        o = strobe.torch.attention(x.q, x.k, x.v, **x.options)
    assert torch.equal(o, call(x)[0])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_stored_keys_have_the_bits_of_converted_ones(element, framework):
    """K and V alone in 8 bits: as products of elements and scales, rounded to q's dtype."""
    generator = np.random.default_rng(3)
    q = generator.standard_normal((2, 7, 4, 32)).astype(ml_dtypes.bfloat16)
    dtype = np.int8 if element == "int8" else FLOAT8
    k, v = (generator.integers(-100, 100, (2, 50, 2, 32)).astype(np.float32).astype(dtype) for _ in range(2))
    k_descale, v_descale = (generator.uniform(0.005, 0.02, (2, 2, 50)).astype(np.float32) for _ in range(2))
    wide_k, wide_v = (
        (x.astype(np.float32) * scale.transpose(0, 2, 1)[..., None]).astype(ml_dtypes.bfloat16)
        for x, scale in ((k, k_descale), (v, v_descale))
    )
    expected = strobe.attention(q, wide_k, wide_v, causal=True)

    def made(x):
        if framework == "torch":
            return torch.from_numpy(x.view(np.uint8)).view(getattr(torch, x.dtype.name))
        return jax.numpy.asarray(x) if framework == "jax" else x

    o = strobe.attention(
        *(made(x) for x in (q, k, v)), k_descale=made(k_descale), v_descale=made(v_descale), causal=True
    )
    np.testing.assert_array_equal(bits(o), bits(expected))


def test_plan_quantization():
    """The plan's settings are quantize's, and the error is below what it says."""
    generator = np.random.default_rng(4)
    q, k, v = (generator.standard_normal((1, 512, 2, 64), dtype=np.float32) for _ in range(3))
    exact = strobe.attention(q, k, v)
    for mode, element in (("fast", "float8_e4m3fn"), ("accurate", "int8")):
        plan = strobe.plan_quantization(q, k, v, mode=mode)
        assert plan.settings["element"] == element
        assert plan.measured
        x = strobe.quantize(q, k, v, **plan.settings)
        error = strobe.attention(x.q, x.k, x.v, **x.options) - exact
        assert np.sqrt(np.square(error).mean()) <= plan.rmse
        assert np.abs(error).max() <= plan.error_bound
        assert "error of O" in plan.explanation
    with pytest.raises(NotImplementedError, match="no 8-bit operands keep to max_rmse"):
        strobe.plan_quantization(q, k, v, max_rmse=1e-6)
    with pytest.raises(ValueError, match="mode is"):
        strobe.plan_quantization(q, k, v, mode="best")


LENGTHS_Q, LENGTHS_K = (70, 0, 1, 29), (33, 20, 64, 13)


@pytest.fixture
def packed():
    """Four sequences as q, k, v, and the options of a call on them."""
    generator = np.random.default_rng(11)
    shapes = ((100, 4, 64), (130, 2, 64), (130, 2, 48))
    bounds = [np.cumsum((0, *lengths)).astype(np.int32) for lengths in (LENGTHS_Q, LENGTHS_K)]
    options = {"cu_seqlens_q": bounds[0], "cu_seqlens_k": bounds[1], "max_seqlen_q": 70, "max_seqlen_k": 64}
    return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes], options


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("bounded", [False, True])
def test_packed_sequences_have_the_bits_that_they_have_alone(packed, element, bounded):
    tensors, options = packed
    if not bounded:
        del options["max_seqlen_q"], options["max_seqlen_k"]
    x = strobe.quantize(*tensors, element=element, **options)
    longest_q, longest_k = (70, 64) if bounded else (100, 130)
    assert (x.q.shape, x.k.shape, x.v.shape) == ((100, 4, 64), (130, 2, 64), (2, 48, 32 * (130 // 32 + 4)))
    assert (x.q_descale.shape, x.v_descale.shape) == ((4, 4, longest_q), (4, 2, longest_k))
    assert x.k_descale.shape == (4, 2, -(-longest_k // 32))
    assert x.q_shift.shape == (4, 4, longest_q)
    o, lse = call(x, causal=True)
    for b in range(4):
        rows_q, rows_k = (slice(*options[f"cu_seqlens_{side}"][b : b + 2]) for side in "qk")
        own = zip(tensors, (rows_q, rows_k, rows_k), strict=True)
        alone = strobe.quantize(*(tensor[None, rows] for tensor, rows in own), element=element)
        np.testing.assert_array_equal(bits(x.q[rows_q]), bits(alone.q[0]))
        wanted, wanted_lse = call(alone, causal=True)
        np.testing.assert_array_equal(bits(o[rows_q]), bits(wanted[0]))
        np.testing.assert_array_equal(bits(lse[:, rows_q]), bits(wanted_lse[0]))


def test_packed_sequences_of_every_framework(packed):
    tensors, options = packed
    from_numpy = strobe.quantize(*tensors, **options)
    as_torch = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    from_torch = strobe.quantize(*(torch.from_numpy(x) for x in tensors), **as_torch)
    from_jax = jax.jit(lambda *tensors: strobe.quantize(*tensors, **options))(*tensors)
    for name in ("q", "k", "v", "q_descale", "k_descale", "v_descale", "q_shift"):
        wanted = bits(getattr(from_numpy, name))
        np.testing.assert_array_equal(bits(getattr(from_torch, name)), wanted)
        np.testing.assert_array_equal(bits(getattr(from_jax, name)), wanted)
    results = call(from_numpy)
    for wanted, *others in zip(results, call(from_torch), call(from_jax), strict=True):
        for other in others:
            np.testing.assert_array_equal(bits(other), bits(wanted))
    attended = strobe.torch.attention(from_torch.q, from_torch.k, from_torch.v, **from_torch.options)
    np.testing.assert_array_equal(bits(attended), bits(results[0]))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(cu_seqlens_q=None), ValueError, r"q has rank 3: it must be \[batch, seqlen, heads, head_dim\]"),
        (dict(cu_seqlens_k=np.zeros((2, 2), np.int32)), ValueError, r"cu_seqlens has shape \[2, 2\]: it must be"),
        (dict(cu_seqlens_k=np.zeros(4, np.int32)), ValueError, "q has batch 4 and k has batch 3: they must be equal"),
        (dict(max_seqlen_k=63), ValueError, "sequence 2 has length 64 in cu_seqlens_k: max_seqlen_k is 63"),
        (dict(max_seqlen_q=-2), ValueError, "max_seqlen_q is -2: it must be 0 or more, or -1 for unknown"),
        (dict(max_seqlen_q=7.5), TypeError, "max_seqlen_q is of type float: it must be an integer"),
        (
            dict(cu_seqlens_q=np.array([0, 70, 60, 71, 100], np.int32)),
            ValueError,
            "cumulative lengths must not decrease",
        ),
    ],
)
def test_misuse_of_packed_sequences(packed, change, error, message):
    tensors, options = packed
    with pytest.raises(error, match=message):
        strobe.quantize(*tensors, **options | change)


def test_plan_quantization_takes_no_packed_sequences(packed):
    tensors, options = packed
    with pytest.raises(
        NotImplementedError, match="cu_seqlens_q is given: plan_quantization takes tensors with a batch"
    ):
        strobe.plan_quantization(*tensors, **options)
