# SPDX-License-Identifier: Apache-2.0
"""strobe.torch.sparse_attention: gradients against PyTorch's own in float64, compiled graphs, bits."""

import pytest
import strobe
import strobe.torch
import torch


def gathered(q, k, v, indices, sink=None):
    """The same by a gather, softmax and product of PyTorch's, for one key head and one list for all heads."""
    b = torch.arange(q.shape[0])[:, None, None]
    listed = indices[:, :, 0].long()
    keys, values = k[b, listed, 0], v[b, listed, 0]  # [batch, seqlen_q, topk, head_dim]
    scores = torch.einsum("bqhd,bqtd->bqht", q, keys) / q.shape[-1] ** 0.5
    if sink is not None:
        scores = torch.cat([scores, sink[None, None, :, None].expand(*scores.shape[:-1], 1)], dim=-1)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()[..., : listed.shape[-1]]
    return torch.einsum("bqht,bqtd->bqhd", weights, values), lse.transpose(1, 2)


@pytest.fixture
def call():
    generator = torch.Generator().manual_seed(2)
    q, k, v = (
        torch.randn(shape, generator=generator, requires_grad=True)
        for shape in ((2, 5, 6, 32), (2, 30, 1, 32), (2, 30, 1, 24))
    )
    indices = torch.randint(0, 30, (2, 5, 1, 11), generator=generator, dtype=torch.int32)
    sink = torch.randn(6, generator=generator, requires_grad=True)
    return q, k, v, indices, sink


def loss_of(o, lse):
    return (o.double() * torch.linspace(-1, 1, o.numel(), dtype=torch.float64).view(o.shape)).sum() + (
        lse.double() ** 2
    ).sum()


def expected_gradients(q, k, v, indices, sink):
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, sink)]
    return torch.autograd.grad(loss_of(*gathered(*exact[:3], indices, exact[3])), exact)


def test_gradients(call):
    q, k, v, indices, sink = call
    o, lse = strobe.torch.sparse_attention(q, k, v, indices, sink=sink, return_lse=True)
    gradients = torch.autograd.grad(loss_of(o, lse), (q, k, v, sink))
    for gradient, expected in zip(gradients, expected_gradients(*call), strict=True):
        torch.testing.assert_close(gradient.double(), expected, atol=2e-5, rtol=2e-5)


def test_values_that_are_part_of_the_keys(call):
    q, k, _, indices, _ = call
    o = strobe.torch.sparse_attention(q, k, None, indices, head_dim_v=24)
    gradients = torch.autograd.grad(o.square().sum(), (q, k))
    exact = [x.detach().double().requires_grad_() for x in (q, k)]
    o64, _ = gathered(*exact, exact[1][..., :24], indices)
    for gradient, expected in zip(gradients, torch.autograd.grad(o64.square().sum(), exact), strict=True):
        torch.testing.assert_close(gradient.double(), expected, atol=2e-5, rtol=2e-5)


def test_a_second_source_has_gradients_of_its_own(call):
    q, k, v, indices, _ = call
    extra_k, extra_v = (x.detach().flip(1).contiguous().requires_grad_() for x in (k, v))
    extra = strobe.SparseSource(k=extra_k, v=extra_v, indices=29 - indices)
    o = strobe.torch.sparse_attention(q, k, v, indices, extra=extra)
    dk, dv, extra_dk, extra_dv = torch.autograd.grad(o.square().sum(), (k, v, extra_k, extra_v))
    torch.testing.assert_close(dk, extra_dk.flip(1), atol=1e-5, rtol=1e-5)  # every key is there twice
    torch.testing.assert_close(dv, extra_dv.flip(1), atol=1e-5, rtol=1e-5)


def test_gradients_have_the_same_bits(call):
    q, k, v, indices, sink = call
    runs = []
    for threads in (1, 3):
        o, lse = strobe.torch.sparse_attention(q, k, v, indices, sink=sink, return_lse=True, threads=threads)
        runs.append(torch.autograd.grad(loss_of(o, lse), (q, k, v, sink)))
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


def test_compiled_without_a_break(call):
    q, k, v, indices, sink = call

    def step(q, k, v, sink):
        o, lse = strobe.torch.sparse_attention(q * 1.0, k, v, indices, sink=sink, return_lse=True)
        return loss_of(o, lse)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    gradients = torch.autograd.grad(compiled(q, k, v, sink), (q, k, v, sink))
    for gradient, expected in zip(gradients, torch.autograd.grad(step(q, k, v, sink), (q, k, v, sink)), strict=True):
        assert torch.equal(gradient, expected)


def test_a_cache_in_a_compiled_graph():
    form = strobe.RowFormat.deepseek_v32()
    cache = torch.zeros(2, 16, 1, form.row_bytes, dtype=torch.uint8)
    form.encode(torch.randn(2, 16, 1, form.columns), cache)
    q = torch.randn(1, 1, 8, form.columns, dtype=torch.bfloat16)
    indices = torch.arange(0, 32, 3, dtype=torch.int32).view(1, 1, 1, -1)

    def decode(q, cache):
        return strobe.sparse_attention(q, cache, None, indices, k_format=form, in_pool=True) * 1.0

    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, cache), decode(q, cache))


def test_operators_pass_pytorchs_own_checks(call):
    q, k, v, indices, sink = (x.detach().requires_grad_(x.requires_grad) for x in call)
    arguments = (
        q,
        k,
        v,
        indices,
        *[None] * 11,
        sink,
        None,
        *(1, False, False, "", "") * 2,
        24,
        None,
        0.0,
        0,
        "automatic",
    )
    torch.library.opcheck(
        torch.ops.strobe.sparse_attention.default, arguments,
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_static"),
    )  # fmt: skip


def test_what_has_no_gradient_says_so(call):
    q, k, v, indices, _ = call
    with pytest.raises(ValueError, match="does not record: call strobe"):
        strobe.sparse_attention(q, k, v, indices)
    pool = k.detach().requires_grad_()
    o = strobe.torch.sparse_attention(q, pool, v, indices, in_pool=True)
    with pytest.raises(ValueError, match=r"sources\[0\] has a pool: a backward takes k and v of floats"):
        o.sum().backward()
