# SPDX-License-Identifier: Apache-2.0
"""The argument mask, beside every option that looks at keys, against float64."""

import inspect
import itertools

import numpy as np
import pytest
import reference
import strobe
import strobe.torch
import torch

BATCH, HEADS, HEADS_KV, HEAD_DIM = 3, 4, 2, 16
OFFSETS = np.array([5, 0, 9], np.int32)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def inputs(sq, sk, batch=BATCH):
    k, v = (draw(seed, batch, sk, HEADS_KV, HEAD_DIM) for seed in (2, 3))
    return draw(1, batch, sq, HEADS, HEAD_DIM), k, v


def keys_from(begin, end, sk):
    """[batch, sk]: a run of keys for each sequence."""
    return (np.arange(sk) >= np.array(begin)[:, None]) & (np.arange(sk) < np.array(end)[:, None])


def random_mask(*shape):
    return np.random.default_rng(len(shape)).random(shape) < 0.5


def masks(sq, sk):
    return {
        "all": np.ones((BATCH, sk), bool),
        "right padding": keys_from([0, 0, 0], [sk, sk // 2, 0], sk),
        "left padding": keys_from([3, 0, sk], [sk, sk, sk], sk),
        "both sides": keys_from([1, 0, 4], [sk - 2, sk, 4], sk),
        "holes": random_mask(BATCH, sk),
        "one sequence's": random_mask(1, sk),
        "pairs": random_mask(BATCH, sq, sk),
        "queries": random_mask(1, sq, 1),
        "heads": random_mask(BATCH, HEADS, sq, sk),
        "keys of heads": random_mask(1, HEADS, 1, sk),
        "none": np.zeros((1, 1, 1, 1), bool),
    }


LENGTHS = [(24, 24), (7, 24), (24, 7)]
SQUARE = masks(24, 24)
OPTIONS = {
    "alone": {},
    "causal": {"causal": True},
    "top left": {"causal": "top_left"},
    "window": {"window": (5, 2)},
    "causal window": {"causal": "bottom_right", "window": (5, -1)},
    "chunk": {"chunk": 5, "causal": True},
    "alibi": {"alibi_slopes": np.array([0.5, 0.1, 0.3, 1], np.float32)},
    "softcap and sink": {"softcap": 2.0, "sink": np.array([1, 2, -1, 0], np.float32), "scale": 0.3},
    "block mask": {"block_mask": np.ones((1, 1, 1, 1), np.uint8), "block_size": 64},
}


def whole(mask):
    """Rank 4."""
    return {2: lambda: mask[:, None, None], 3: lambda: mask[:, None], 4: lambda: mask}[mask.ndim]()


def as_bias(mask):
    return np.where(whole(mask), 0, -np.inf) if mask.dtype == bool else whole(mask)


def expected(q, k, v, mask, options):
    bias = as_bias(mask) + options.get("bias", 0)
    return reference.attention(q, k, v, **options | {"bias": bias})


def of_torch(values):
    return {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in values.items()}


def call_numpy(q, k, v, mask, options):
    return strobe.attention(q, k, v, mask=mask, return_lse=True, **options)


def call_torch(q, k, v, mask, options):
    arguments = of_torch({"q": q, "k": k, "v": v, "mask": mask} | options)
    return [x.numpy() for x in strobe.torch.attention(**arguments, return_lse=True)]


def call_recorded(q, k, v, mask, options):
    arguments = of_torch({"q": q, "k": k, "v": v, "mask": mask} | options)
    arguments["q"].requires_grad_()
    return [x.detach().numpy() for x in strobe.torch.attention(**arguments, return_lse=True)]


@pytest.mark.parametrize("call", [call_numpy, call_torch, call_recorded])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("sq", "sk"), LENGTHS)
def test_every_kind_of_mask_and_option(sq, sk, options, call):
    q, k, v = inputs(sq, sk)
    for name, mask in masks(sq, sk).items():
        want = expected(q, k, v, mask, OPTIONS[options])[:2]
        for got, wanted in zip(call(q, k, v, mask, OPTIONS[options]), want, strict=True):
            np.testing.assert_allclose(got, wanted, atol=5e-6, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", SQUARE)
def test_keys_that_are_hidden_count_for_log_length(name):
    q, k, v = inputs(24, 24)
    want = expected(q, k, v, SQUARE[name], {"scale": np.log(24) / np.log(5) / np.sqrt(HEAD_DIM)})[:2]
    for got, wanted in zip(call_numpy(q, k, v, SQUARE[name], {"log_length": 5}), want, strict=True):
        np.testing.assert_allclose(got, wanted, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("name", ["holes", "pairs", "heads", "queries"])
def test_floating_point_is_added(name, dtype):
    q, k, v = inputs(24, 24)
    shape = SQUARE[name].shape
    mask = np.where(random_mask(*shape), draw(5, *shape), -np.inf).astype(dtype)
    options = {"causal": True, "bias": draw(6, 1, HEADS, 24, 24)}
    want = expected(q, k, v, mask.astype(np.float64), options)[:2]
    for call in (call_numpy, call_torch, call_recorded):
        for got, wanted in zip(call(q, k, v, mask, options), want, strict=True):
            np.testing.assert_allclose(got, wanted, atol=5e-6, rtol=1e-5, err_msg=call.__name__)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SQUARE)
def test_16_bits(name, dtype):
    """The result is the one that the same call has without the keys that the mask hides."""
    q, k, v = (torch.from_numpy(x).to(dtype) for x in inputs(24, 24))
    mask = torch.from_numpy(SQUARE[name])
    bias = torch.from_numpy(as_bias(SQUARE[name])).float().expand(-1, -1, 24, 24)
    want = strobe.torch.attention(q, k, v, bias=bias.contiguous())
    torch.testing.assert_close(strobe.torch.attention(q, k, v, mask=mask), want)
    torch.testing.assert_close(strobe.attention(q, k, v, mask=mask), want)


@pytest.mark.parametrize("bias_dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", SQUARE)
def test_beside_a_bias(name, bias_dtype):
    """Of bool masks and a bias whose other elements hold anything."""
    q, k, v = (x.astype(bias_dtype) for x in inputs(24, 24))
    bias = draw(6, 1, 1, 24, 24).astype(bias_dtype)
    mask = SQUARE[name]
    shown = np.broadcast_to(whole(mask), (BATCH, HEADS, 24, 24)).any((0, 1))
    clean = np.where(shown, bias, 0).astype(bias_dtype)
    want = expected(q, k, v, mask, {"bias": clean.astype(np.float64)})[0]
    got = strobe.attention(q, k, v, mask=mask, bias=np.where(shown, bias, np.nan).astype(bias_dtype))
    np.testing.assert_allclose(got, want, atol=5e-6 if bias_dtype == "float32" else 2e-3)


def gradients_by_torch(q, k, v, mask, d_o, causal):
    """dq, dk and dv in float64, by PyTorch's tape over the equations; `mask` is [batch, heads, sq, sk] and added."""
    q, k, v = (torch.from_numpy(x).double().requires_grad_() for x in (q, k, v))
    keys, values = (x.repeat_interleave(HEADS // HEADS_KV, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) / HEAD_DIM**0.5 + mask
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[2:], dtype=torch.bool).tril(), -torch.inf)
    p = torch.softmax(scores, -1).nan_to_num()  # a row that sees nothing
    out = torch.einsum("bhqk,bkhd->bqhd", p, values)
    return torch.autograd.grad(out, (q, k, v), torch.from_numpy(d_o).double())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SQUARE)
def test_gradients(name, causal):
    q, k, v = inputs(24, 24)
    d_o, mask = draw(4, *q.shape), SQUARE[name]
    # Softmax of a row of -inf alone has NaN as gradient: hidden scores are very small in place of that.
    added = torch.from_numpy(np.maximum(as_bias(mask), -1e30))
    seen = np.broadcast_to(whole(mask), (BATCH, HEADS, 24, 24))
    seen = (seen & np.tri(24, dtype=bool)) if causal else seen
    d_o = d_o * seen.any(-1).transpose(0, 2, 1)[..., None]  # rows that see nothing have no gradient
    want = gradients_by_torch(q, k, v, added, d_o, causal)

    o, lse = strobe.attention(q, k, v, mask=mask, causal=causal, return_lse=True)
    by_numpy = strobe.attention_backward(d_o, q, k, v, o, lse, mask=mask, causal=causal)
    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    out = strobe.torch.attention(*tensors, mask=torch.from_numpy(mask), causal=causal)
    by_torch = torch.autograd.grad(out, tensors, torch.from_numpy(d_o))
    for wanted, *got in zip(want, by_numpy, by_torch, strict=True):
        for gradient in got:
            np.testing.assert_allclose(gradient, wanted, atol=1e-5)


@pytest.mark.parametrize("mask_shape", [(BATCH, 24), (1, 24, 24), (BATCH, HEADS, 24, 24), (1, 1, 24, 1)])
@pytest.mark.parametrize("bias_shape", [(1, 1, 24, 24), (BATCH, 1, 24, 24), (1, HEADS, 24, 24)])
def test_gradients_of_a_bias_and_of_a_mask(bias_shape, mask_shape):
    """Each has the shape of its own, and is the sum over what is shared."""
    q, k, v = inputs(24, 24)
    d_o, bias, mask = draw(4, *q.shape), draw(5, *bias_shape), draw(6, *mask_shape)
    both = (bias + whole(mask)).astype(np.float32)
    both = np.ascontiguousarray(np.broadcast_to(both, (BATCH, HEADS, 24, 24)))
    o, lse = strobe.attention(q, k, v, bias=both, return_lse=True)
    *_, d_both = strobe.attention_backward(d_o, q, k, v, o, lse, bias=both, return_d_bias=True)

    def summed(shape):
        shared = tuple(axis for axis, (n, full) in enumerate(zip(shape, d_both.shape, strict=True)) if n != full)
        return d_both.sum(shared, keepdims=True, dtype=np.float64)

    *_, d_bias = strobe.attention_backward(d_o, q, k, v, o, lse, bias=bias, mask=mask, return_d_bias=True)
    assert d_bias.shape == bias_shape
    np.testing.assert_allclose(d_bias, summed(bias_shape), atol=1e-4)

    leaves = [torch.from_numpy(x).requires_grad_() for x in (bias, mask)]
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    out = strobe.torch.attention(*tensors, bias=leaves[0], mask=leaves[1])
    by_torch = torch.autograd.grad(out, leaves, torch.from_numpy(d_o))
    np.testing.assert_allclose(by_torch[0], summed(bias_shape), atol=1e-4)
    np.testing.assert_allclose(by_torch[1], summed(whole(mask).shape).reshape(mask_shape), atol=1e-4)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("name", SQUARE)
def test_hidden_keys_may_hold_anything(name, kind, poison):
    q, k, v = inputs(24, 24)
    mask = SQUARE[name]
    seen = np.broadcast_to(whole(mask), (BATCH, HEADS, 24, 24)).any(2)
    seen = seen.reshape(BATCH, HEADS_KV, -1, 24).any(2).transpose(0, 2, 1)[..., None]
    poisoned = [np.where(seen, x, np.float32(poison)) for x in (k, v)]
    given = mask if kind == "bool" else as_bias(mask).reshape(mask.shape).astype(np.float32)
    d_o = draw(4, *q.shape)
    results = []
    for keys, values in ((k, v), poisoned):
        o, lse = strobe.attention(q, keys, values, mask=given, return_lse=True)
        gradients = strobe.attention_backward(d_o, q, keys, values, o, lse, mask=given)
        tensors = [torch.from_numpy(x).requires_grad_() for x in (q, keys, values)]
        out = strobe.torch.attention(*tensors, mask=torch.from_numpy(given))
        by_torch = torch.autograd.grad(out, tensors, torch.from_numpy(d_o))
        results.append([o, lse, *gradients, out.detach().numpy(), *(x.numpy() for x in by_torch)])
    for clean, dirty in zip(*results, strict=True):
        np.testing.assert_array_equal(clean, dirty)
    for gradient in (*results[1][3:5], *results[1][-2:]):
        assert (np.where(seen, 0, gradient) == 0).all()


@pytest.mark.parametrize(
    ("name", "options", "taken"),
    [
        ("all", {"causal": True}, set()),
        ("right padding", {}, {"seqused_k"}),
        ("right padding", {"causal": True}, {"seqused_k"}),
        ("right padding", {"dropout": 0.5, "seed": 1}, {"seqused_k"}),
        ("right padding", {"window": (4, 4)}, {"bias"}),
        ("right padding", {"window": (4, 4), "offset_q": OFFSETS}, {"seqused_k"}),
        ("right padding", {"causal": True, "offset_k": OFFSETS}, {"seqused_k"}),
        ("left padding", {"causal": True, "offset_q": OFFSETS}, {"bias"}),
        ("left padding", {"causal": True, "window": (4, -1)}, {"leftpad_k"}),
        ("left padding", {"causal": "top_left"}, {"bias"}),
        ("left padding", {"dropout": 0.5, "seed": 1}, {"bias"}),
        ("both sides", {}, {"leftpad_k", "seqused_k"}),
        ("both sides", {"causal": True}, {"bias"}),
        ("holes", {}, {"bias"}),
    ],
)
def test_padding_becomes_lengths(name, options, taken, monkeypatch):
    """Where that changes nothing but the time."""
    q, k, v = inputs(24, 24)
    forward, seen = strobe._core.forward, {}

    def spy(*tensors, **given):
        seen.update(given)
        return forward(*tensors, **given)

    monkeypatch.setattr(strobe._core, "forward", spy)
    for call in (call_numpy, call_torch):
        seen.clear()
        call(q, k, v, SQUARE[name], options)
        assert seen.keys() & {"bias", "seqused_k", "leftpad_k"} == taken


def test_dropout_is_that_of_the_positions():
    """Whichever way the mask is taken, the same probabilities are dropped."""
    q, k, v = inputs(24, 24)
    keep = strobe.dropout_mask((BATCH, HEADS, 24, 24), 0.5, seed=3)
    for name, mask in SQUARE.items():
        got = strobe.attention(q, k, v, mask=mask, dropout=0.5, seed=3)
        want = reference.attention(q, k, v, bias=as_bias(mask), keep=keep, dropout=0.5)[0]
        np.testing.assert_allclose(got, want, atol=5e-6, err_msg=name)


def test_beside_used_lengths():
    q, k, v = inputs(24, 24)
    used = np.array([20, 24, 3], np.int32)
    for name, mask in SQUARE.items():
        both = np.broadcast_to(whole(mask), (BATCH, HEADS, 24, 24)) & keys_from([0] * 3, used, 24)[:, None, None]
        got = strobe.attention(q, k, v, mask=mask, seqused_k=used)
        np.testing.assert_allclose(got, expected(q, k, v, both, {})[0], atol=5e-6, err_msg=name)


@pytest.mark.parametrize(("batch", "sq", "sk"), [(0, 4, 4), (2, 0, 4), (2, 4, 0), (1, 1, 1)])
def test_empty(batch, sq, sk):
    q, k, v = inputs(sq, sk, batch)
    for shape in ((batch, sk), (batch, sq, sk), (1, 1, 1, 1)):
        for mask in (np.ones(shape, bool), np.zeros(shape, bool), np.zeros(shape, np.float32)):
            o = strobe.attention(q, k, v, mask=mask)
            assert o.shape == q.shape
            assert sk == 1 or not o.any()
            assert strobe.torch.attention(**of_torch({"q": q, "k": k, "v": v, "mask": mask})).shape == q.shape


@pytest.mark.parametrize("name", SQUARE)
def test_compiled_and_transformed(name):
    """Where values cannot be read every mask is a bias, and the result is the same."""
    q, k, v = (torch.from_numpy(x) for x in inputs(24, 24))
    mask = torch.from_numpy(SQUARE[name])
    want = strobe.torch.attention(q, k, v, mask=mask, causal=True)

    def call(q, k, v, mask):
        return strobe.torch.attention(q, k, v, mask=mask, causal=True)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, mask), want)
    samples = [torch.stack([x, x + 1]) for x in (q, k, v)]
    mapped = torch.func.vmap(call, in_dims=(0, 0, 0, None))(*samples, mask)
    torch.testing.assert_close(mapped[0], want)
    gradient = torch.func.grad(lambda q: call(q, k, v, mask).sum())(q)
    leaf = q.clone().requires_grad_()
    (expected_gradient,) = torch.autograd.grad(call(leaf, k, v, mask).sum(), leaf)
    torch.testing.assert_close(gradient, expected_gradient)


def test_explain():
    q, k, v = inputs(24, 24)
    bias = strobe.explain(q, k, v, bias=np.zeros((1, 1, 24, 24), np.float32))
    assert strobe.explain(q, k, v, mask=SQUARE["pairs"]) == strobe.explain(
        q, k, v, bias=np.zeros((BATCH, 1, 24, 24), np.float32)
    )
    assert strobe.explain(q.shape, k.shape, v.shape, mask=(1, 24, 24)) == bias
    assert strobe.explain(*(torch.from_numpy(x) for x in (q, k, v)), mask=torch.ones(1, 24)) == bias
    used = np.array([24, 12, 0], np.int32)
    assert strobe.explain(q, k, v, mask=SQUARE["right padding"]) == strobe.explain(q, k, v, seqused_k=used)
    with pytest.raises(ValueError, match=r"mask has shape \[3, 25\]"):
        strobe.explain(q.shape, k.shape, v.shape, mask=(3, 25))
    with pytest.raises(TypeError, match="mask is of type list: it must be a tensor, or its shape"):
        strobe.explain(q.shape, k.shape, v.shape, mask=[3, 24])


@pytest.mark.parametrize(
    "function", [strobe.attention, strobe.attention_backward, strobe.explain, strobe.torch.attention]
)
def test_help_and_completion(function):
    assert inspect.signature(function).parameters["mask"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "mask" in function.__doc__.partition("Options:")[0]


def test_arguments_stay_as_they_were():
    """Neither tensors nor a caller's options change."""
    q, k, v = inputs(24, 24)
    for mask, bias in itertools.product(SQUARE.values(), (None, draw(6, 1, 1, 24, 24))):
        given = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
        copies = {name: None if x is None else x.copy() for name, x in given.items()}
        for call in (strobe.attention, lambda **given: strobe.torch.attention(**of_torch(given))):
            call(**given)
            for name, copy in copies.items():
                if copy is not None:
                    np.testing.assert_array_equal(given[name], copy)
