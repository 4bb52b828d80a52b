# SPDX-License-Identifier: Apache-2.0
"""Keys that a boolean attn_mask of sdpa() shows to no query reach no result, whatever K and V hold there."""

import math
import sys

import pytest
import strobe.torch
import torch
from strobe import _few_queries
from strobe._frameworks.torch import Torch
from torch.nn.functional import scaled_dot_product_attention

POISONS = [math.nan, math.inf, -math.inf, 1e38]


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def visible(*shape):
    """A mask that hides half of the pairs."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) < 0.5


def padding():
    """The second sample has 4 of 9 keys; the third none."""
    return (torch.arange(9) < torch.tensor([[9], [4], [0]])).view(3, 1, 1, 9)


def sdpa(q, k, v, **arguments):
    with strobe.torch.sdpa():
        return scaled_dot_product_attention(q, k, v, **arguments)


def hidden_from(mask, k, seqlen_q):
    """[.., seqlen_k, 1], True where no query that reads this key sees it."""
    seen = mask.expand(*mask.shape[:-2], seqlen_q, k.shape[-2]).any(-2)
    if seen.dim() > 1 and k.dim() > 2 and seen.shape[-2] not in (1, k.shape[-3]):  # grouped heads
        seen = seen.unflatten(-2, (k.shape[-3], -1)).any(-2)
    return ~seen.unsqueeze(-1).expand(*k.shape[:-1], 1)


def with_gradients(function, inputs, **arguments):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs, **arguments)
    return [out.detach(), *torch.autograd.grad((out * torch.linspace(-1, 1, out.shape[-1])).sum(), inputs)]


CASES = [
    pytest.param((3, 4, 6, 8), (3, 4, 9, 8), padding(), id="padding"),
    pytest.param((3, 4, 6, 8), (3, 2, 9, 8), padding(), id="padding, grouped heads"),
    pytest.param((3, 4, 6, 8), (3, 4, 9, 8), padding() & visible(1, 1, 6, 9), id="padding and pairs"),
    pytest.param((2, 4, 2, 8), (2, 4, 9, 8), visible(2, 4, 2, 9), id="by head"),
    pytest.param((2, 4, 2, 8), (2, 2, 9, 8), visible(2, 4, 2, 9), id="by head, grouped heads"),
    pytest.param((2, 4, 2, 8), (2, 4, 9, 8), visible(2, 9), id="of all samples"),
    pytest.param((4, 2, 8), (4, 9, 8), visible(4, 1, 9), id="rank 3"),
    pytest.param((6, 8), (9, 8), visible(1, 9), id="rank 2"),
    pytest.param((2, 3, 4, 2, 8), (2, 3, 4, 9, 8), visible(3, 1, 1, 9), id="rank 5"),
    pytest.param((2, 4, 300, 8), (2, 4, 700, 8), visible(2, 1, 1, 700), id="many blocks"),
    pytest.param((2, 4, 6, 8), (2, 4, 9, 8), torch.zeros(6, 1, dtype=torch.bool), id="all"),
]


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize(("q_shape", "k_shape", "mask"), CASES)
def test_hidden_keys_reach_nothing(q_shape, k_shape, mask, poison):
    q, k, v = draw(*q_shape), draw(*k_shape, seed=1), draw(*k_shape, seed=2)
    hidden = hidden_from(mask, k, q.shape[-2])
    assert hidden.any()
    poisoned = [q, *(torch.where(hidden, poison, x) for x in (k, v))]
    arguments = {"attn_mask": mask, "enable_gqa": len(k_shape) > 2 and q_shape[-3] != k_shape[-3]}
    clean = [q.double(), *(torch.where(hidden, 0.0, x.double()) for x in (k, v))]
    exact = with_gradients(scaled_dot_product_attention, clean, **arguments)
    results = with_gradients(sdpa, poisoned, **arguments)
    for result, wanted in zip(results, exact, strict=True):
        torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-5)
    for gradient in results[2:]:
        assert not torch.where(hidden, gradient, 0.0).any()
    with torch.no_grad():
        assert torch.equal(sdpa(*poisoned, **arguments), results[0])


@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 3e4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits(dtype, poison, head_dim):
    q, k, v = (draw(3, 4, 9, head_dim, seed=seed).to(dtype) for seed in range(3))
    hidden = ~padding().transpose(-1, -2)
    poisoned = [q, *(x.masked_fill(hidden, poison) for x in (k, v))]
    clean = [q, *(x.masked_fill(hidden, 0.0) for x in (k, v))]
    results, wanted = (with_gradients(sdpa, inputs, attn_mask=padding()) for inputs in (poisoned, clean))
    for result, exact in zip(results, wanted, strict=True):
        assert result.isfinite().all()
        assert torch.equal(result, exact)
    with torch.no_grad():
        assert torch.equal(sdpa(*poisoned, attn_mask=padding()), wanted[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    q, k, v = (draw(3, 4, 9, 8, seed=seed) for seed in range(3))
    poisoned = [q, *(x.masked_fill(~padding().transpose(-1, -2), math.nan) for x in (k, v))]
    compiled = torch.compile(sdpa, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    results = with_gradients(compiled, poisoned, attn_mask=padding())
    for result, wanted in zip(results, with_gradients(sdpa, poisoned, attn_mask=padding()), strict=True):
        assert torch.equal(result, wanted)


def test_masks_without_hidden_keys_copy_nothing():
    """On the CPU, where the mask can be looked at."""
    q, k, v = (draw(1, 2, 6, 8, seed=seed) for seed in range(3))
    masks = strobe.torch.masks
    mask = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    assert masks.without_hidden_keys(mask, k, v) == (k, v)
    assert masks.without_hidden_keys(mask[..., :-1, :], k, v)[0] is not k
    q.requires_grad_()
    result = sdpa(q, k, v, attn_mask=mask)
    torch.testing.assert_close(result, scaled_dot_product_attention(q, k, v, attn_mask=mask), rtol=1e-5, atol=1e-6)


LAYOUTS = {
    "heads first": lambda x: x,
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of a cache": lambda x: torch.cat((x, x), 2)[:, :, : x.shape[2]],
    "one K and V": lambda x: x[:, :1].expand_as(x),
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("seqlen_q", [1, 5])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_keys_of_few_queries_as_pages(layout, seqlen_q, batch, poison):
    """What GPUs compute; every engine can."""
    q, mask = draw(batch, 4, seqlen_q, 8), visible(batch, 1, 1, 90)
    mask[-1, ..., 7:] = False
    k, v = (draw(batch, 2, 90, 8, seed=seed) for seed in (1, 2))
    hidden = ~mask.transpose(-1, -2)
    poisoned, clean = ([layout(x.masked_fill(hidden, value)) for x in (k, v)] for value in (poison, 0.0))
    out = sys.modules["strobe.torch.sdpa"]._by_rows(q, *poisoned, mask, 0.4)
    wanted = scaled_dot_product_attention(
        *(x.double() for x in (q, *clean)), attn_mask=mask, scale=0.4, enable_gqa=True
    )
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


def test_one_query_without_keys():
    q, k = draw(2, 4, 1, 8), draw(2, 4, 9, 8).fill_(math.nan)
    by_rows = sys.modules["strobe.torch.sdpa"]._by_rows
    assert not by_rows(q, k, k, torch.zeros(1, 1, 1, 1, dtype=torch.bool), None).any()
    assert by_rows(q, k[:, :, :0], k[:, :, :0], torch.zeros(1, 1, 1, 1, dtype=torch.bool), None) is None
    assert by_rows(q, k, k.transpose(1, 2).contiguous().transpose(1, 2), torch.ones(1, 1, 1, 9).bool(), None) is None


class OnAGpu(Torch):
    def is_on_gpu(self, tensor):
        return True


def test_the_argument_mask_of_few_queries():
    """No other key is read, and nothing is copied: the call's own K and V are what the engine is given."""
    q, k, v, sink = draw(3, 5, 4, 8), draw(3, 90, 2, 8, seed=1), draw(3, 90, 2, 8, seed=2), draw(4)
    mask = visible(3, 90)
    options = {"scale": 0.4, "sink": sink, "softcap": 5.0}
    wanted = strobe.attention(q, k, v, mask=mask, return_lse=True, return_max_logits=True, **options)
    poisoned = [x.masked_fill(~mask[:, :, None, None], math.nan) for x in (k, v)]
    for given in (mask, mask[:, None], mask[:, None, None]):
        found = _few_queries.attend(OnAGpu(), given, (q, *poisoned), options, True, True)
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
    rows_k, rows_v, _ = OnAGpu().visible_rows(mask[:, None, None], k, v)
    assert (rows_k.data_ptr(), rows_v.data_ptr()) == (k.data_ptr(), v.data_ptr())


@pytest.mark.parametrize("option", [{"causal": True}, {"alibi_slopes": torch.ones(4)}, {"scale": torch.ones(())}])
def test_options_that_keys_by_rows_lack(option):
    q, k, mask = draw(3, 5, 4, 8), draw(3, 90, 2, 8), visible(3, 90)
    assert _few_queries.attend(OnAGpu(), mask, (q, k, k), option, False, False) is None


def test_calls_that_keys_by_rows_do_not_have():
    q, k, mask = draw(3, 5, 4, 8), draw(3, 90, 2, 8), visible(3, 90)
    for query, given in (
        (draw(3, 65, 4, 8), mask),
        (q, mask.float()),
        (q, visible(3, 5, 90)),
        (q, visible(3, 4, 1, 90)),
    ):
        assert _few_queries.attend(OnAGpu(), given, (query, k, k), {}, False, False) is None
