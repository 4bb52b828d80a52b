# SPDX-License-Identifier: Apache-2.0
"""Nested tensors: attention of each sequence alone, by strobe.torch.attention and by sdpa(); and what falls back."""

import pytest
import strobe.torch
import torch
from torch.nn.functional import scaled_dot_product_attention

HEADS, HEADS_KV, HEAD_DIM = 4, 2, 16
LENGTHS, KEYS = [5, 0, 17, 1], [7, 3, 17, 9]


def offsets(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def draw(ends, heads, seed):
    values = torch.randn(int(ends[-1]), heads, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    return torch.nested.nested_tensor_from_jagged(values, ends).detach().requires_grad_()


def qkv(keys=KEYS):
    q, k = offsets(LENGTHS), offsets(keys)
    return draw(q, HEADS, 0), draw(k, HEADS_KV, 1), draw(k, HEADS_KV, 2)


def alone(q, k, v, **options):
    """Each sequence in float64 by PyTorch; its loss's gradients are those of the values."""
    parts = []
    for sequence in zip(q.unbind(), k.unbind(), v.unbind(), strict=True):
        heads_first = (x.double().transpose(0, 1) for x in sequence)
        parts.append(scaled_dot_product_attention(*heads_first, enable_gqa=True, **options).transpose(0, 1))
    return torch.cat(parts)


def gradients(values, tensors):
    weights = torch.linspace(-1, 1, values.numel(), dtype=values.dtype).reshape(values.shape)
    return [x.values() for x in torch.autograd.grad((values * weights).sum(), tensors)]


def by_call(q, k, v, causal):
    return strobe.torch.attention(q, k, v, causal="top_left" if causal else False)


def by_sdpa(q, k, v, causal):
    with strobe.torch.sdpa():
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("call", [by_call, by_sdpa])
def test_sequences_are_what_they_are_alone(call, causal):
    tensors = qkv()
    out = call(*tensors, causal)
    assert out.shape == tensors[0].shape
    wanted = alone(*tensors, is_causal=causal)
    torch.testing.assert_close(out.values().double(), wanted, rtol=1e-5, atol=1e-5)
    for result, reference in zip(gradients(out.values(), tensors), gradients(wanted, tensors), strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(call(*tensors, causal).values(), out.values())


def test_lse_and_scales():
    q, k, v = qkv()
    scale = torch.full((HEADS,), 0.3)
    out, lse, max_logits = strobe.torch.attention(q, k, v, scale=scale, return_lse=True, return_max_logits=True)
    assert out.is_nested
    assert max_logits.shape == (len(LENGTHS), HEADS)
    for part, query, key in zip(lse.unbind(), q.unbind(), k.unbind(), strict=True):
        scores = 0.3 * torch.einsum("qhd,khd->hqk", query.double(), key.double().repeat_interleave(2, 1))
        torch.testing.assert_close(part.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_lengths_within_room():
    """Rows behind each sequence's length do not count, whatever they hold."""
    ends, lengths = torch.tensor([0, 8, 16, 30]), torch.tensor([5, 8, 0])
    values = torch.randn(30, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(3))
    for begin, end, length in zip(ends[:-1], ends[1:], lengths, strict=True):
        values[begin + length : end] = torch.nan
    x = torch.nested.nested_tensor_from_jagged(values, ends, lengths)
    out = strobe.torch.attention(x, x, x)
    for begin, length in zip(ends[:-1], lengths, strict=True):
        part = values[None, begin : begin + length]
        wanted = strobe.torch.attention(part, part, part)[0]
        torch.testing.assert_close(out.values()[begin : begin + length], wanted, rtol=1e-5, atol=1e-6)


def test_compiled():
    torch._dynamo.reset()
    tensors = qkv()
    out = torch.compile(by_call, backend="aot_eager", fullgraph=True)(*tensors, True)
    torch.testing.assert_close(out.values(), by_call(*tensors, True).values(), rtol=0, atol=0)


def test_errors():
    q, k, v = qkv()
    dense = torch.zeros(4, 5, HEADS_KV, HEAD_DIM)
    with pytest.raises(ValueError, match="k is dense: q, k and v are nested tensors of the jagged layout"):
        strobe.torch.attention(q, dense, dense)
    with pytest.raises(ValueError, match="k has the layout of nested tensors: it must be dense"):
        strobe.torch.attention(dense, k, v)
    with pytest.raises(ValueError, match="k and v are nested tensors of different offsets"):
        strobe.torch.attention(q, k, draw(offsets([1, 9, 17, 9]), HEADS_KV, 2))
    with pytest.raises(ValueError, match="cu_seqlens_k is given for nested tensors"):
        strobe.torch.attention(q, k, v, cu_seqlens_k=offsets(KEYS).int())
    with pytest.raises(
        ValueError, match=r"q is nested and has shape .*: it must be \[batch, jagged, heads, head_dim\]"
    ):
        strobe.torch.attention(*(x.transpose(1, 2) for x in (q, k, v)))


DENSE = torch.zeros(1, 2, 3, 8)
STRIDED = torch.nested.nested_tensor([torch.zeros(2, 3, 8)])
REJECTED = {
    "float64": (DENSE.double(), {}),
    "head_dim": (torch.zeros(1, 2, 3, 1024), {}),
    "dropout of everything but nothing": (DENSE, {"dropout_p": 0.999}),
    "nested, strided": (STRIDED, {}),
    "a mask of a type of its own": (
        DENSE,
        {"attn_mask": torch.zeros(3, 3).as_subclass(type("Own", (torch.Tensor,), {}))},
    ),
}


@pytest.mark.parametrize(("x", "options"), REJECTED.values(), ids=REJECTED)
def test_what_strobe_rejects_falls_back(x, options):
    with strobe.torch.sdpa(), pytest.raises((NotImplementedError, ValueError, TypeError)):
        scaled_dot_product_attention(x, x, x, **options)
    with strobe.torch.sdpa(fallback=True):
        out = scaled_dot_product_attention(x, x, x, **options)
    if not out.is_nested:
        assert torch.equal(out, torch.zeros_like(x))


def test_a_compiled_call_falls_back():
    torch._dynamo.reset()
    x = draw(offsets([12]), HEADS, 7).values().detach().view(1, 12, HEADS, HEAD_DIM).transpose(1, 2).double()

    def attend(x):
        with strobe.torch.sdpa(fallback=True):
            return scaled_dot_product_attention(x, x, x)

    result = torch.compile(attend, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(result, scaled_dot_product_attention(x, x, x))
