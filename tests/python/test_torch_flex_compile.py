# SPDX-License-Identifier: Apache-2.0
"""flex_attention under torch.compile and torch.export."""

import pytest
import strobe.torch
import torch
from expression_reference import draw
from flex_functions import D_OUT, SCORES, SK, SQ, H, K, Q, V
from strobe.torch.flex import TraceError
from torch.nn.attention import flex_attention as pytorch


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def test_compiled_and_exported():
    slope, table = draw(1, H).requires_grad_(), draw(2, H, SQ + SK).requires_grad_()

    def call(q, k, v):
        block_mask = strobe.torch.create_block_mask(lambda b, h, i, j: (j <= i) | (j < 9), None, None, SQ, SK)
        return strobe.torch.flex_attention(
            q, k, v, lambda s, b, h, i, j: torch.tanh(s) + slope[h] * (j - i) + table[h, i - j + SK], block_mask
        )

    def gradients(out):
        return torch.autograd.grad((out * D_OUT).sum(), [slope, table])

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(Q, K, V), call(Q, K, V))
    for ours, wanted in zip(gradients(compiled(Q, K, V)), gradients(call(Q, K, V)), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(slope.detach())

        def forward(self, q, k, v):
            return strobe.torch.flex_attention(q, k, v, lambda s, b, h, i, j: s + self.slope[h] * (i - j))

    model = Model()
    assert torch.equal(torch.export.export(model, (Q, K, V)).module()(Q, K, V), model(Q, K, V))


UNTRACED = {
    "if": (lambda s, b, h, q, k: s if q > k else -s, "the truth of a traced value"),
    "a function that there is not": (lambda s, b, h, q, k: torch.erf(s), "`erf` of a traced value"),
    "a method that there is not": (lambda s, b, h, q, k: s.cumsum(0), "`cumsum` of a traced value"),
    "a row": (lambda s, b, h, q, k: s + Q[b, h, q] * 2, "the value of a row of 16 elements"),
    "a write": (lambda s, b, h, q, k: s + Q.add_(1)[b, h, q, 0], "it writes to a tensor"),
    "a product of 35 bits": (lambda s, b, h, q, k: s + q * k * 10000000 % 7, "an integer that may be 19890000000"),
}


@pytest.mark.parametrize("name", UNTRACED)
def test_the_reason_for_what_cannot_be_traced_is_shown(name):
    score_mod, reason = UNTRACED[name]

    def call(q, k, v):
        return strobe.torch.flex_attention(q, k, v, score_mod)

    with pytest.raises(torch._dynamo.exc.Unsupported) as error:
        torch.compile(call, fullgraph=True, backend="eager")(Q, K, V)
    place = f"({__file__}, line {score_mod.__code__.co_firstlineno})"
    assert f"TraceError('score_mod `<lambda>` {place} cannot be written as text: {reason}" in str(error.value)
    with pytest.raises(TraceError):
        call(Q, K, V)


def test_the_call_itself():
    """With its outputs, and gradients of captures whose sizes change."""
    call = torch.compile(strobe.torch.flex_attention, fullgraph=True, backend="aot_eager", dynamic=True)
    for heads in (4, 8, 4):
        scale = draw(heads, heads).requires_grad_()

        def score_mod(s, b, h, q, k, scale=scale):
            return s * scale[h]

        q = draw(1, 1, heads, 9, 8)
        out, lse = call(q, q, q, score_mod, return_lse=True)
        wanted, wanted_lse = strobe.torch.flex_attention(q, q, q, score_mod, return_lse=True)
        assert torch.equal(out, wanted)
        assert torch.equal(lse, wanted_lse)
        (gradient,) = torch.autograd.grad(out.square().sum(), scale)
        torch.testing.assert_close(gradient, *torch.autograd.grad(wanted.square().sum(), scale), rtol=0, atol=0)
    aux = call(q, q, q, return_aux=pytorch.AuxRequest(lse=True))[1]
    assert torch.equal(aux.lse, strobe.torch.flex_attention(q, q, q, return_lse=True)[1])


COMPARISONS = {
    "a sum of sizes": lambda n, m: lambda b, h, i, j: torch.lt(i, (n // 8 + m // 8) * 4),
    "a difference": lambda n, m: lambda b, h, i, j: i - n // 2 < 3,
    "a remainder": lambda n, m: lambda b, h, i, j: (i % (n // 4) == 0) | (j < 9),
    "a quotient": lambda n, m: lambda b, h, i, j: i // (n // 4) == j // (m // 4),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_masks_of_sizes_that_are_left_open(name):
    def call(q, k, v):
        n, m = q.size(-2), k.size(-2)
        block_mask = strobe.torch.create_block_mask(COMPARISONS[name](n, m), None, None, n, m)
        return strobe.torch.flex_attention(q, k, v, lambda s, b, h, i, j: s + q.shape[0] * i / n, block_mask)

    compiled = torch.compile(call, fullgraph=True, backend="eager", dynamic=True)
    for queries in (SQ, SQ - 7):
        given = Q[:, :, :queries], K, V
        assert torch.equal(compiled(*given), call(*given))


OPEN_SIZES = [
    "relative bias, from the end",
    "a document's own scale",
    "a constant index",
    "a value of other tensors",
    "rows",
]


@pytest.mark.parametrize("name", OPEN_SIZES)
def test_sizes_that_are_left_open(name):
    make, leaves = SCORES[name]
    score_mod = make(*leaves.values())

    def call(q, k, v):
        return strobe.torch.flex_attention(q, k, v, score_mod)

    compiled = torch.compile(call, fullgraph=True, backend="eager", dynamic=True)
    for queries in (SQ, SQ - 9):
        given = Q[:, :, :queries], K, V
        assert torch.equal(compiled(*given), call(*given))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_sizes_that_are_left_open(strict):
    table = draw(3, H, 300)

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            n = k.shape[2]
            mask = strobe.torch.create_block_mask(lambda b, h, i, j: i >= j - n // 2, None, None, q.shape[2], n)
            return strobe.torch.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i - j] + (i + n) / 64, mask)

    sizes = ({2: torch.export.Dim.AUTO},) * 3
    exported = torch.export.export(Model(), (Q, K, V), dynamic_shapes=sizes, strict=strict).module()
    assert torch.equal(exported(Q, K, V), Model()(Q, K, V))
