# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives of attention, against PyTorch's own of the plain equations in float64."""

import pytest
import strobe.torch
import torch
from torch.autograd import forward_ad
from torch.nn.functional import scaled_dot_product_attention

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BATCH, SEQLEN_Q, SEQLEN_K, HEADS, HEADS_KV, HEAD_DIM = 2, 37, 45, 4, 2, 16
CENTER = SEQLEN_K - SEQLEN_Q
DISTANCE = torch.arange(SEQLEN_K)[None] - torch.arange(SEQLEN_Q)[:, None] - CENTER
BIAS = torch.randn(1, HEADS, SEQLEN_Q, SEQLEN_K, generator=torch.Generator().manual_seed(7))
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
USED = torch.tensor([45, 20], dtype=torch.int32)


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def rows(dtype=torch.float32):
    """q, k and v, and tangents of them."""
    shapes = [(BATCH, SEQLEN_Q, HEADS, HEAD_DIM)] + 2 * [(BATCH, SEQLEN_K, HEADS_KV, HEAD_DIM)]
    drawn = [draw(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(2 * shapes)]
    return tuple(drawn[:3]), tuple(drawn[3:])


def plain(q, k, v, *, scale=HEAD_DIM**-0.5, softcap=0.0, bias=0.0, visible=None, sink=None):
    """o and lse, by the equations, of any dtype."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + bias
    if visible is not None:
        scores = torch.where(visible, scores, -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    o = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1)[..., : k.shape[1]], v)
    return o, scores.logsumexp(-1)


CASES = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"visible": DISTANCE <= 0}),
    "window": ({"window": (7, 3)}, {"visible": (DISTANCE >= -7) & (DISTANCE <= 3)}),
    "softcap": ({"softcap": 1.5, "scale": 0.7}, {"softcap": 1.5, "scale": 0.7}),
    "negative scale": ({"scale": -0.3}, {"scale": -0.3}),
    "alibi": ({"alibi_slopes": SLOPES}, {"bias": -SLOPES[:, None, None] * DISTANCE.abs()}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "sink": ({"sink": SLOPES}, {"sink": SLOPES}),
    "used keys": (
        {"seqused_k": USED},
        {"visible": torch.arange(SEQLEN_K)[None, None, None] < USED[:, None, None, None]},
    ),
}


def check(actual, exact, dtype):
    """Within one rounding to the dtype of what float32 arithmetic comes to."""
    torch.testing.assert_close(actual.double(), exact, rtol=torch.finfo(dtype).eps, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_jvp_is_that_of_the_equations(case, dtype):
    options, equations = CASES[case]
    primals, tangents = rows(dtype)
    (o, lse), (o_tangent, lse_tangent) = torch.func.jvp(
        lambda *x: strobe.torch.attention(*x, return_lse=True, **options), primals, tangents
    )
    exact, exact_tangent = torch.func.jvp(
        lambda *x: plain(*x, **equations), *(tuple(x.double() for x in inputs) for inputs in (primals, tangents))
    )
    check(o, exact[0], dtype)
    check(lse, exact[1], torch.float32)
    check(o_tangent, exact_tangent[0], dtype)
    check(lse_tangent, exact_tangent[1], torch.float32)


def test_packed_sequences_have_the_tangents_of_their_sequences():
    lengths, ends = (5, 0, 17), torch.tensor([0, 5, 5, 22], dtype=torch.int32)
    x, tangent = (draw(22, 2, HEAD_DIM, seed=seed) for seed in (1, 2))
    packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "causal": True}
    _, actual = torch.func.jvp(lambda x: strobe.torch.attention(x, x, x, **packed), (x,), (tangent,))
    first = 0
    for length in lengths:
        own = slice(first, first + length)
        _, alone = torch.func.jvp(
            lambda x: strobe.torch.attention(x, x, x, causal=True), (x[None, own],), (tangent[None, own],)
        )
        torch.testing.assert_close(actual[None, own], alone)
        first += length


@pytest.mark.parametrize("moved", [(0,), (1,), (2,), (0, 2)])
def test_dual_numbers_of_some_inputs(moved):
    primals, tangents = rows()
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(x, t) if i in moved else x
            for i, (x, t) in enumerate(zip(primals, tangents, strict=True))
        ]
        o, tangent = forward_ad.unpack_dual(strobe.torch.attention(*duals))
    zeroed = tuple((t if i in moved else torch.zeros_like(t)).double() for i, t in enumerate(tangents))
    exact, exact_tangent = torch.func.jvp(lambda *x: plain(*x)[0], tuple(x.double() for x in primals), zeroed)
    check(o, exact, torch.float32)
    check(tangent, exact_tangent, torch.float32)


def test_rows_that_are_not_dense_and_hidden_nan():
    primals, tangents = rows()
    q, k, v = (x.transpose(1, 3).contiguous().transpose(1, 3) for x in primals)
    strided = tuple(x.transpose(1, 3).contiguous().transpose(1, 3) for x in tangents)
    _, expected = torch.func.jvp(strobe.torch.attention, primals, tangents)
    _, actual = torch.func.jvp(strobe.torch.attention, (q, k, v), strided)
    assert torch.equal(actual, expected)
    poisoned = tuple(x.clone() for x in tangents)
    for x in poisoned[1:]:
        x[1, 20:] = torch.nan  # behind the used keys
    used = [
        torch.func.jvp(lambda *x: strobe.torch.attention(*x, seqused_k=USED), primals, t)[1]
        for t in (tangents, poisoned)
    ]
    assert torch.equal(*used)


def test_jacfwd_and_linearize():
    q, k, v = (draw(1, 3, 1, 4, seed=seed) for seed in range(3))
    actual = torch.func.jacfwd(lambda q: strobe.torch.attention(q, k, v))(q)
    exact = torch.func.jacrev(lambda q: plain(q, k, v, scale=0.5)[0])(q)
    torch.testing.assert_close(actual, exact)
    primals, tangents = rows()
    _, linear = torch.func.linearize(strobe.torch.attention, *primals)
    _, expected = torch.func.jvp(strobe.torch.attention, primals, tangents)
    torch.testing.assert_close(linear(*tangents), expected)


def test_vmap_inside_and_outside():
    samples = [draw(5, 2, 7, 2, 8, seed=seed) for seed in range(6)]
    primals, tangents = tuple(samples[:3]), tuple(samples[3:])
    _, exact = torch.func.jvp(torch.func.vmap(lambda *x: plain(*x, scale=8**-0.5)[0]), primals, tangents)
    _, inside = torch.func.jvp(torch.func.vmap(strobe.torch.attention), primals, tangents)
    outside = torch.func.vmap(lambda *x: torch.func.jvp(strobe.torch.attention, x[:3], x[3:])[1])(*samples)
    torch.testing.assert_close(inside, exact)
    torch.testing.assert_close(outside, exact)


def by_sdpa(q, k, v):
    with strobe.torch.sdpa():
        return scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


@pytest.mark.parametrize("attention", [strobe.torch.attention, by_sdpa])
def test_the_output_of_a_jvp_trains(attention):
    """MeanFlow's loss: the tangent is part of a target that is not differentiated."""
    x, direction = draw(BATCH, 19, 2, HEAD_DIM, seed=1), draw(BATCH, 19, 2, HEAD_DIM, seed=2)
    gradients = []
    for function, dtype in ((attention, torch.float32), (lambda *x: plain(*x)[0], torch.float64)):
        weight = torch.nn.Parameter(0.3 * draw(HEAD_DIM, 3 * HEAD_DIM).to(dtype))

        def network(z, function=function, weight=weight):
            return function(*(z @ weight).chunk(3, -1))

        u, dudt = torch.func.jvp(network, (x.to(dtype),), (direction.to(dtype),))
        (u - (u + dudt).detach() + 0.1 * u).square().mean().backward()
        gradients.append(weight.grad.double())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_a_gradient_of_a_jvps_output_by_torch_func():
    primals, tangents = rows()

    def loss(q, function):
        o, tangent = torch.func.jvp(lambda q: function(q, *primals[1:]), (q,), tangents[:1])
        return (o * tangent.detach()).sum()

    actual = torch.func.grad(lambda q: loss(q, strobe.torch.attention))(primals[0])
    torch.testing.assert_close(actual, torch.func.grad(lambda q: loss(q, lambda *x: plain(*x)[0]))(primals[0]))


def second_derivatives():
    (q, k, v), (direction, _, _) = rows()

    def tangent(q):
        return torch.func.jvp(lambda q: strobe.torch.attention(q, k, v), (q,), (direction,))[1]

    weight = q.clone().requires_grad_()
    yield "backward of a tangent", lambda: tangent(weight).sum().backward()
    yield "grad of a tangent", lambda: torch.func.grad(lambda q: tangent(q).sum())(q)
    yield "jvp of a tangent", lambda: torch.func.jvp(tangent, (q,), (direction,))
    gradient = torch.func.grad(lambda q: strobe.torch.attention(q, k, v).sum())
    yield "jvp of a gradient", lambda: torch.func.jvp(gradient, (q,), (direction,))


@pytest.mark.parametrize("derivative", dict(second_derivatives()).values(), ids=dict(second_derivatives()))
def test_second_derivatives_raise(derivative):
    with pytest.raises(NotImplementedError, match="second derivative of attention"):
        derivative()
    primals, tangents = rows()  # the next call works
    assert torch.func.jvp(strobe.torch.attention, primals, tangents)[1].isfinite().all()


@pytest.mark.parametrize(
    ("name", "value"), [("bias", BIAS), ("sink", SLOPES), ("alibi_slopes", SLOPES)], ids=["bias", "sink", "slopes"]
)
def test_tangents_of_modifiers_raise(name, value):
    primals, _ = rows()
    with pytest.raises(NotImplementedError, match=f"{name} has a tangent"):
        torch.func.jvp(lambda x: strobe.torch.attention(*primals, **{name: x}), (value,), (value,))


def test_max_logits_have_no_tangent():
    primals, tangents = rows()
    with pytest.raises(NotImplementedError, match="max_logits has no tangent"):
        torch.func.jvp(lambda *x: strobe.torch.attention(*x, return_max_logits=True), primals, tangents)


def test_a_learnt_scale_has_a_tangent():
    primals, tangents = rows()
    scale, direction = torch.tensor(0.3), torch.tensor(0.7)
    _, actual = torch.func.jvp(
        lambda s, *x: strobe.torch.attention(*x, scale=s), (scale, *primals), (direction, *tangents)
    )
    _, exact = torch.func.jvp(
        lambda s, *x: plain(*x, scale=s)[0],
        *(tuple(x.double() for x in inputs) for inputs in ((scale, *primals), (direction, *tangents))),
    )
    check(actual, exact, torch.float32)
