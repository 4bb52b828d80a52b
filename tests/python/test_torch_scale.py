# SPDX-License-Identifier: Apache-2.0
"""A scale that is a tensor, of a call or of each head: results and gradients beside attention in float64."""

import pytest
import strobe
import strobe.torch
import torch
from torch.func import grad, jvp, vmap

HEADS, HEAD_DIM = 4, 24


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(rows=37, keys=53, heads_kv=2):
    shapes = ((2, rows, HEADS, HEAD_DIM), (2, keys, heads_kv, HEAD_DIM), (2, keys, heads_kv, HEAD_DIM))
    return [draw(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def exact(q, k, v, scale, softcap=0.0, causal=False):
    """In the tensors' dtype, which is float64 where it is to be exact."""
    heads = q.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale.reshape(-1, 1, 1)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def with_gradients(function, *tensors):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]


SCALES = {
    "a number": torch.tensor(0.3),
    "one": torch.tensor([0.3]),
    "heads": torch.tensor([0.3, -0.2, 0.0, 1.5]),
    "heads without 0": torch.tensor([0.3, -0.2, 0.1, 1.5]),
    "negative": torch.tensor(-0.25),
    "zero": torch.tensor(0.0),
    "float64": torch.tensor(0.3, dtype=torch.float64),
}


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"causal": True}], ids=["plain", "softcap", "causal"])
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients(scale, options, dtype):
    """No worse than twice plain attention in the dtype, which is what libraries ask of each other."""
    tensors = [*(x.to(dtype) for x in qkv()), scale]
    results = with_gradients(lambda q, k, v, s: strobe.torch.attention(q, k, v, scale=s, **options), *tensors)
    plain = with_gradients(lambda q, k, v, s: exact(q, k, v, s.to(dtype), **options), *tensors)
    wanted = with_gradients(lambda *x: exact(*x, **options), *(x.double() for x in tensors))
    assert [x.dtype for x in results] == [dtype, *(x.dtype for x in tensors)]
    addends = tensors[0].double() * wanted[1]  # of scale's gradient times scale, each rounded by itself
    for result, other, reference in zip(results, plain, wanted, strict=True):
        error, allowed = ((x.double() - reference).abs().max() for x in (result, other))
        allowed = 2 * allowed + 1e-6 * (1 + reference.abs().max())
        if result is results[-1] and scale.all():
            allowed += torch.finfo(dtype).eps * (addends / scale.reshape(-1, 1)).norm()
        assert error <= allowed, (error, allowed)
    with torch.no_grad():
        assert torch.equal(strobe.torch.attention(*tensors[:3], scale=scale, **options), results[0])


def test_small_scales_keep_the_digits_of_float16():
    q, k, v = (x.half() for x in qkv())
    scale = torch.tensor(2e-6)
    result = strobe.torch.attention(q, 5e4 * k.clamp(-1, 1), v, scale=scale)
    wanted = exact(q.double(), (5e4 * k.clamp(-1, 1)).double(), v.double(), scale.double())
    assert (result - wanted).abs().max() < 1e-3


def test_packed_sequences():
    lengths = [5, 0, 17]
    ends = torch.tensor([0, 5, 5, 22], dtype=torch.int32)
    q, k, v = (draw(22, heads, HEAD_DIM, seed=heads + seed) for seed, heads in enumerate((HEADS, 2, 2)))
    scale = SCALES["heads without 0"]

    def packed(q, k, v, scale):
        return strobe.torch.attention(q, k, v, scale=scale, cu_seqlens_q=ends, cu_seqlens_k=ends, causal=True)

    def separate(q, k, v, scale):
        parts = (x.split(lengths) for x in (q, k, v))
        return torch.cat([exact(*(x[None] for x in part), scale, causal=True)[0] for part in zip(*parts, strict=True)])

    results = with_gradients(packed, q, k, v, scale)
    wanted = with_gradients(separate, *(x.double() for x in (q, k, v, scale)))
    for result, reference in zip(results[:-1], wanted[:-1], strict=True):
        torch.testing.assert_close(result.double(), reference, rtol=1e-5, atol=1e-5)
    check_sum(results[-1], wanted[-1], q.double() * wanted[1] / scale[:, None])


def loss(scale, q, k, v):
    return strobe.torch.attention(q, k, v, scale=scale).sin().sum()


def check_sum(result, wanted, addends):
    """Off by float32's rounding of the addends at most."""
    assert (result.double() - wanted).abs().max() <= torch.finfo(torch.float32).eps * addends.abs().sum()


def check_gradient(gradient, scale, q, k, v):
    q, k, v, scale = (x.detach().double().requires_grad_() for x in (q, k, v, scale))
    d_q, wanted = torch.autograd.grad(exact(q, k, v, scale).sin().sum(), (q, scale))
    check_sum(gradient, wanted, q * d_q / scale.reshape(-1, 1))


@pytest.mark.parametrize("scale", ["a number", "heads without 0"])
@pytest.mark.parametrize("compiled", [False, True])
def test_transforms(scale, compiled):
    torch._dynamo.reset()
    tensors, scale = qkv(), SCALES[scale]
    gradient = grad(loss)
    of_samples = vmap(grad(lambda scale, *qkv: loss(scale, *(x[None] for x in qkv))), in_dims=(None, 0, 0, 0))
    if compiled:
        gradient, of_samples = (
            torch.compile(function, backend="aot_eager", fullgraph=True) for function in (gradient, of_samples)
        )
    check_gradient(gradient(scale, *tensors), scale, *tensors)
    check_gradient(of_samples(scale, *tensors).sum(0), scale, *tensors)
    several = vmap(grad(loss), in_dims=(0, None, None, None))(torch.stack((scale, -scale)), *tensors)
    check_gradient(several[1], -scale, *tensors)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_scale_is_no_constant(dynamic):
    torch._dynamo.reset()
    tensors = qkv()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for value in (0.3, -2.0):
        scale = torch.tensor(value, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(scale, *tensors), scale)
        check_gradient(gradient, scale, *tensors)


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (torch.ones(3), ValueError, r"scale has shape \[3\]: it must be a number, \[1\] or \[heads_q\], which is 4"),
        (torch.ones(1, 4), ValueError, r"scale has shape \[1, 4\]"),
        (torch.tensor(1j), TypeError, "scale is complex64: it must be a number, or a tensor of those"),
        (torch.tensor(True), TypeError, "scale is bool"),
    ],
)
def test_what_is_no_scale(scale, error, message):
    with pytest.raises(error, match=message):
        strobe.torch.attention(*qkv(), scale=scale)


def test_calls_without_gradients_refuse_to_lose_one():
    with pytest.raises(ValueError, match=r"scale requires a gradient, which strobe\.attention does not record"):
        strobe.attention(*qkv(), scale=torch.tensor(0.3, requires_grad=True))


@pytest.mark.parametrize("scale", [torch.tensor(0.3), torch.ones(HEADS)])
def test_forward_mode(scale):
    """As above: no worse than twice plain attention in float32, but for a part in 10^6."""
    direction = torch.linspace(0.5, 1.5, scale.numel()).reshape(scale.shape)
    results = jvp(lambda scale: strobe.torch.attention(*qkv(), scale=scale), (scale,), (direction,))
    plain = jvp(lambda scale: exact(*qkv(), scale), (scale,), (direction,))
    doubles = [x.double() for x in qkv()]
    expected = jvp(lambda scale: exact(*doubles, scale), (scale.double(),), (direction.double(),))
    for result, other, value in zip(results, plain, expected, strict=True):
        error, allowed = ((x - value).abs().max() for x in (result, other))
        assert error <= 2 * allowed + 1e-6 * (1 + value.abs().max()), (error, allowed)
