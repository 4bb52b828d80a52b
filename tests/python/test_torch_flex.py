# SPDX-License-Identifier: Apache-2.0
"""flex_attention: functions as PyTorch's FlexAttention takes them, against float64 and against PyTorch's own."""

import functools

import expression_reference
import pytest
import strobe
import strobe.torch
import torch
from expression_reference import copies, draw
from strobe.torch.flex import TraceError
from strobe.torch.flex.tracing import Sizes, trace
from torch.nn.attention import flex_attention as pytorch

B, H, SQ, SK, D = 2, 4, 40, 52, 16
SIDE = 7
Q, K, V = draw(1, B, H, SQ, D), draw(2, B, H, SK, D), draw(3, B, H, SK, D)
D_OUT = draw(4, B, H, SQ, D)


class Bias(torch.nn.Module):
    """Functions that find their tensors in an object."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def score(self, score, b, h, q, k):
        return score + self.table[h, q - k + SK - 1]


def bucket(distance):
    """T5's, of keys on both sides."""
    sign = (distance < 0).to(torch.int32) * 8
    n = distance.abs()
    large = 4 + (torch.log(n.float() / 4 + 1e-6) / 2.0 * 4).to(torch.int32)
    return sign + torch.where(n < 4, n, torch.minimum(large, torch.full_like(large, 7)))


def nested(scale, offset):
    def inner(x):
        return x * scale + offset

    return inner


def ramp(h, x, slope):
    return torch.where(h % 2 == 0, x * slope[h], x)


# By name: what makes the function of its tensors, and the tensors. Captured reals have gradients.
SCORES = {
    "identity": (lambda: lambda s, b, h, q, k: s, {}),
    "times two": (lambda: lambda s, b, h, q, k: s * 2, {}),
    "squared": (lambda: lambda s, b, h, q, k: s * s, {}),
    "head offset": (lambda offset: lambda s, b, h, q, k: s + offset[h], {"offset": draw(5, H)}),
    "head scale": (lambda scale: lambda s, b, h, q, k: s * scale[h], {"scale": draw(6, H)}),
    "relative": (lambda: lambda s, b, h, q, k: s + (q - k) * 0.125, {}),
    "relative, by logarithms": (lambda: lambda s, b, h, q, k: s - torch.log1p((q - k).abs().float()), {}),
    "alibi": (lambda slope: lambda s, b, h, q, k: s + slope[h] * (k - q), {"slope": draw(7, H)}),
    "alibi, a part of heads": (
        lambda slope: lambda s, b, h, q, k: torch.where(h >= 2, s - slope[h] * (q - k).abs(), s),
        {"slope": draw(7, H)},
    ),
    "causal": (lambda: lambda s, b, h, q, k: torch.where(q >= k, s, float("-inf")), {}),
    "causal, of an inverse": (lambda: lambda s, b, h, q, k: torch.where(~(q < k), s, -torch.inf), {}),
    "softcap": (lambda: lambda s, b, h, q, k: 3 * torch.tanh(s / 3), {}),
    "softcap, learnt": (lambda cap: lambda s, b, h, q, k: cap * torch.tanh(s / cap), {"cap": torch.tensor(3.0)}),
    "bias": (lambda bias: lambda s, b, h, q, k: s + bias[b, h, q, k], {"bias": draw(8, B, H, SQ, SK)}),
    "bias of pairs": (lambda bias: lambda s, b, h, q, k: s + bias[q, k], {"bias": draw(8, SQ, SK)}),
    "bias of keys": (lambda bias: lambda s, b, h, q, k: s + bias[b][h, k], {"bias": draw(8, B, H, SK)}),
    "forgetting": (lambda f: lambda s, b, h, q, k: s + f[b, h, q] - f[b, h, k], {"f": -draw(9, B, H, SK).abs()}),
    "relative bias": (lambda t: lambda s, b, h, q, k: s + t[h, q - k + SK - 1], {"t": draw(10, H, SQ + SK - 1)}),
    "relative bias, from the end": (lambda t: lambda s, b, h, q, k: s + t[h, q - k], {"t": draw(10, H, SQ + SK - 1)}),
    "relative bias of an object": (lambda t: Bias(t).score, {"t": draw(10, H, SQ + SK - 1)}),
    "a table of buckets": (lambda t: lambda s, b, h, q, k: s + t[h, bucket(q - k)], {"t": draw(11, H, 16)}),
    "documents": (
        lambda doc: lambda s, b, h, q, k: torch.where(doc[b, q] == doc[b, k], s, -torch.inf),
        {"doc": torch.arange(SK).div(9, rounding_mode="floor").expand(B, SK)},
    ),
    "a document's own scale": (
        lambda doc, scale: lambda s, b, h, q, k: s * scale[doc[q]],
        {"doc": torch.arange(SK) // 20, "scale": draw(12, 3)},
    ),
    "one tensor twice": (lambda t: lambda s, b, h, q, k: s + t[q] * t[k], {"t": draw(13, SK)}),
    "one axis at a time": (lambda t: lambda s, b, h, q, k: s + t[b][h][q][k], {"t": draw(14, B, H, SQ, SK)}),
    "axes in another order": (lambda t: lambda s, b, h, q, k: s + t[:, k][q], {"t": draw(15, SQ, SK)}),
    "an ellipsis": (lambda t: lambda s, b, h, q, k: s + t[..., k][q], {"t": draw(15, SQ, SK)}),
    "a transposed view": (lambda t: lambda s, b, h, q, k: s + t.T[q, k], {"t": draw(15, SK, SQ)}),
    "an expanded view": (lambda t: lambda s, b, h, q, k: s + t.expand(H, SK)[h, k], {"t": draw(16, 1, SK)}),
    "a constant index": (lambda t: lambda s, b, h, q, k: s + t[-1, k] + t[0, q], {"t": draw(17, 3, SK)}),
    "a value of other tensors": (lambda t: lambda s, b, h, q, k: s + (t * 2).exp()[k], {"t": draw(16, SK) / 4}),
    "float64": (lambda t: lambda s, b, h, q, k: s + t[k], {"t": draw(16, SK).double()}),
    "bytes": (lambda t: lambda s, b, h, q, k: s + t[k], {"t": torch.arange(SK, dtype=torch.uint8) % 3}),
    "nested functions": (lambda t: lambda s, b, h, q, k: nested(0.5, t[h])(nested(2.0, 1.0)(s)), {"t": draw(5, H)}),
    "a partial": (lambda t: functools.partial(_partial, table=t), {"t": draw(5, H)}),
    "arithmetic": (
        lambda: lambda s, b, h, q, k: (1 - s) / 2 + (q // 3 - k % 5) * 0.1 + -s.abs() ** 2 * 0.01 + 2**-s - q / (k + 1),
        {},
    ),
    "functions": (
        lambda: lambda s, b, h, q, k: (
            torch.sigmoid(s) + s.exp().sqrt() + torch.sin(s) * torch.cos(s) + torch.floor(s) + torch.relu(s)
            + torch.rsqrt(s * s + 1) + torch.exp2(s) + torch.log(s.abs() + 1) + torch.nn.functional.silu(s)
            + torch.nn.functional.softplus(s) + torch.expm1(s * 0.1) + torch.square(s) + torch.reciprocal(s * s + 1)
        ) * 0.1,
        {},
    ),
    "bounds": (lambda: lambda s, b, h, q, k: torch.clamp(s, -1, 1) + s.clamp(max=0.5) + torch.maximum(s, s * 0.1), {}),
    "truths": (
        lambda: lambda s, b, h, q, k: torch.where(
            torch.logical_and(q > k, torch.logical_or(h == 1, ~(b != 0))) | (q == k), s, s - 1
        ),
        {},
    ),
    "conversions": (lambda: lambda s, b, h, q, k: s + ((q - k).to(s.dtype) / 8).to(torch.int32).float() + (q > k), {}),
    "rank 0 on the left": (lambda t: lambda s, b, h, q, k: t * s + t - t / (s * s + 1), {"t": torch.tensor(0.5)}),
    "a part of heads": (lambda slope: lambda s, b, h, q, k: ramp(h, s, slope), {"slope": draw(18, H)}),
}  # fmt: skip


def _partial(s, b, h, q, k, table):
    return s + table[h]


def causal(b, h, q, k):
    return q >= k


def document_of(doc):
    return lambda b, h, q, k: doc[q] == doc[k]


DOCUMENT = torch.arange(SK) // 9
LENGTHS = torch.tensor([31, 52])
OFFSETS = torch.tensor([0, 9, 30, 52])
MASKS = {
    "causal": causal,
    "no mask": pytorch.noop_mask,
    "window": lambda b, h, q, k: (q - k < 9) & (q >= k),
    "both sides": lambda b, h, q, k: (q - k).abs() <= 5,
    "prefix": pytorch.or_masks(causal, lambda b, h, q, k: k < 7),
    "prefix of each sequence": pytorch.or_masks(causal, lambda b, h, q, k: k < LENGTHS[b] - 30),
    "documents": document_of(DOCUMENT),
    "causal documents": pytorch.and_masks(causal, document_of(DOCUMENT)),
    "padding": lambda b, h, q, k: k < LENGTHS[b],
    "dilated": lambda b, h, q, k: (q - k) % 3 == 0,
    "blocks of three": lambda b, h, q, k: q // 3 == k // 3,
    "neighbours": lambda b, h, q, k: ((q // SIDE - k // SIDE).abs() <= 2) & ((q % SIDE - k % SIDE).abs() <= 2),
    "heads": lambda b, h, q, k: (h % 2 == 0) | (q >= k),
    "jagged": lambda b, h, q, k: torch.where(q < OFFSETS[1], 0, 1) == torch.where(k < OFFSETS[1], 0, 1),
    "none for some": lambda b, h, q, k: (q > 3) & (k > 3),
    "global": lambda b, h, q, k: (q < 2) | (k < 2) | ((q - k).abs() < 4),
    "not": lambda b, h, q, k: torch.logical_not(q < k),
    "exclusive": lambda b, h, q, k: (q > 9) ^ (k > 9),
}


def check(score, mask, leaves, q=Q, k=K, v=V, tolerance=2e-5):
    """Forward and backward beside float64. `leaves` makes score and mask of a list of captured tensors."""
    captured = [x.requires_grad_() if x.is_floating_point() else x for x in (x.clone() for x in leaves)]
    query, key, value = (x.clone().requires_grad_() for x in (q, k, v))
    score_mod = score and score(*captured)
    block_mask = None if mask is None else strobe.torch.create_block_mask(mask, None, None, q.shape[2], k.shape[2])
    out, lse = strobe.torch.flex_attention(query, key, value, score_mod, block_mask, enable_gqa=True, return_lse=True)
    wanted = copies(q, k, v, *leaves)
    exact = score and score(*wanted[3:])
    o, wanted_lse = expression_reference.attention(*(x.transpose(1, 2) for x in wanted[:3]), exact, mask)
    torch.testing.assert_close(out.double(), o.transpose(1, 2), rtol=1e-5, atol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=tolerance)
    out.backward(D_OUT)
    o.backward(D_OUT.double().transpose(1, 2))
    for ours, theirs in zip((query, key, value, *captured), wanted, strict=True):
        if theirs.grad is not None:
            assert ours.grad.dtype == ours.dtype
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=10 * tolerance)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    score, leaves = SCORES[name]
    check(score, None, leaves.values())


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    check(None, MASKS[name], [])


def test_scores_and_masks_and_grouped_heads():
    score, leaves = SCORES["alibi"]
    check(score, MASKS["causal documents"], leaves.values(), k=K[:, :2], v=V[:, :2])


def test_a_mask_of_pytorch_gives_the_same():
    mask = pytorch.create_block_mask(MASKS["causal documents"], None, None, SQ, SK, device="cpu")
    ours = strobe.torch.flex_attention(Q, K, V, SCORES["times two"][0](), mask)
    theirs = pytorch.flex_attention(Q.double(), K.double(), V.double(), SCORES["times two"][0](), mask)
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-5)


def test_a_mask_of_blocks_alone():
    blocks = torch.tensor([[[[0, 1], [0, 1]]]]), torch.tensor([[[1, 2]]])
    mask = pytorch.BlockMask.from_kv_blocks(blocks[1].int(), blocks[0].int(), BLOCK_SIZE=64, seq_lengths=(128, 128))
    q = draw(1, 1, 1, 128, D)
    out = strobe.torch.flex_attention(q, q, q, block_mask=mask)
    wanted = strobe.torch.flex_attention(q, q, q, block_mask=_of(lambda b, h, i, j: j // 64 <= i // 64, 128))
    torch.testing.assert_close(out, wanted, rtol=0, atol=2e-6)
    mask = pytorch.BlockMask.from_kv_blocks(blocks[1].int(), blocks[0].int(), BLOCK_SIZE=32, seq_lengths=(64, 64))
    with pytest.raises(NotImplementedError, match=r"blocks of \(32, 32\): they must be"):
        strobe.torch.flex_attention(q[:, :, :64], q[:, :, :64], q[:, :, :64], block_mask=mask)


def _of(mask_mod, seqlen, batch=None):
    return strobe.torch.create_block_mask(mask_mod, batch, None, seqlen, seqlen, device="cpu", BLOCK_SIZE=128)


def test_outputs_beside_out():
    out, lse = strobe.torch.flex_attention(Q, K, V, scale=0.3, return_lse=True)
    other, aux = strobe.torch.flex_attention(Q, K, V, scale=0.3, return_aux=pytorch.AuxRequest(lse=True))
    assert torch.equal(out, other)
    assert torch.equal(lse, aux.lse)
    with pytest.raises(NotImplementedError, match="max_scores"):
        strobe.torch.flex_attention(Q, K, V, return_aux=pytorch.AuxRequest(max_scores=True))


UNTRACED = {
    "if": (lambda s, b, h, q, k: s if q > k else -s, "the truth of a traced value"),
    "and": (lambda s, b, h, q, k: (q > k and h > 0) * s, "the truth of a traced value"),
    "int": (lambda s, b, h, q, k: s * int(q), "int"),
    "a count": (lambda s, b, h, q, k: s + sum(range(q)), "as an index of what is no tensor, or as a count"),
    "a function that there is not": (lambda s, b, h, q, k: torch.erf(s), "`erf` of a traced value"),
    "a method that there is not": (lambda s, b, h, q, k: s.cumsum(0), "`cumsum` of a traced value"),
    "a sum of a row": (lambda s, b, h, q, k: s + Q[b, h, q].sum(), ".sum of a tensor that has 1 axes without an index"),
    "a row": (lambda s, b, h, q, k: s + Q[b, h, q], "a tensor that has 1 axes without an index"),
    "no index": (lambda s, b, h, q, k: s + LENGTHS, "a tensor of shape [2] that has no indices"),
    "too many indices": (lambda s, b, h, q, k: s + LENGTHS[b, h], "2 indices of a tensor that has 1 axes"),
    "a slice": (lambda s, b, h, q, k: s + LENGTHS[b:], "an index of type slice"),
    "an index that is no integer": (lambda s, b, h, q, k: s + LENGTHS[s], "an index that is no integer"),
    "bits": (lambda s, b, h, q, k: s + (q & 3), "`&` of numbers"),
    "in place": (lambda s, b, h, q, k: s.add_(1), "it writes to a traced value"),
    "text": (lambda s, b, h, q, k: "score", "a str, where a number or a tensor is needed"),
    "nothing": (lambda s, b, h, q, k: None, "a NoneType, where a number or a tensor is needed"),
    "a variable exponent": (lambda s, b, h, q, k: s**s, "to the power of another"),
    "nan": (lambda s, b, h, q, k: s + float("nan"), "nan as a constant"),
    "a large integer": (lambda s, b, h, q, k: s + (q + 2**40), "1099511627776 is beyond int32"),
    "an unknown argument": (lambda s, b, h, q, k: torch.div(s, 2, rounding_mode="trunc"), "rounding_mode"),
    "doubling": (lambda s, b, h, q, k: functools.reduce(lambda x, _: x * x, range(30), s), "more than 4096 characters"),
    "another dtype": (lambda s, b, h, q, k: s.to(torch.complex64), "a conversion to torch.complex64"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNTRACED)
def test_what_cannot_be_traced_says_where(name):
    score_mod, message = UNTRACED[name]
    with pytest.raises(TraceError) as error:
        strobe.torch.flex_attention(Q, K, V, score_mod)
    line = score_mod.__code__.co_firstlineno
    assert f"score_mod `<lambda>` ({__file__}, line {line}) cannot be written as text: " in str(error.value)
    assert message in str(error.value)


def test_writes_to_tensors_are_not_made():
    seen = torch.zeros(3)

    def writes(s, b, h, q, k):
        seen[0] = 1
        return s

    def writes_there(s, b, h, q, k):
        seen[q] = 1
        return s

    for function in (writes, writes_there):
        with pytest.raises(TraceError, match=f"score_mod `{function.__name__}`.*it writes to a tensor"):
            strobe.torch.flex_attention(Q, K, V, function)
    assert not seen.any()


def test_an_error_of_the_functions_own_passes_through():
    with pytest.raises(ZeroDivisionError):
        strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s / (1 // 0))


def test_wrong_calls():
    flex = strobe.torch.flex_attention
    with pytest.raises(TypeError, match="query is of type"):
        flex(Q.numpy(), K, V)
    with pytest.raises(ValueError, match="query must be a dense tensor of rank 4"):
        flex(Q[0], K, V)
    with pytest.raises(ValueError, match="query has 4 heads and key 2: set enable_gqa"):
        flex(Q, K[:, :2], V[:, :2])
    with pytest.raises(TypeError, match="block_mask is of type"):
        flex(Q, K, V, block_mask=torch.ones(3))
    with pytest.raises(ValueError, match="block_mask is of 8 queries and 8 keys: the call has 40 and 52"):
        flex(Q, K, V, block_mask=_of(causal, 8))
    with pytest.raises(ValueError, match="block_mask is of 3 sequences"):
        flex(Q, K, V, block_mask=_of(causal, 64, batch=3))
    with pytest.raises(TypeError, match="mask_mod is of type"):
        strobe.torch.create_block_mask(3, None, None, 8, 8)
    with pytest.raises(TraceError, match="mask_mod"):
        strobe.torch.create_block_mask(lambda b, h, q, k: q > k and h > 0, None, None, 8, 8)


def test_texts_and_names():
    """What traced functions become."""
    table, cap, k = draw(1, H, SQ + SK - 1), torch.tensor(2.0), draw(2, SK)

    def score_mod(s, b, h, q, kv):
        return cap * torch.tanh((s + table[h, q - kv + SK - 1] + k[kv] + (table * 2)[h, q]) / cap)

    texts = trace(score_mod, pytorch.and_masks(causal), Sizes(B, H, SQ, SK), torch.float32, torch.device("cpu"))
    assert texts.score == "cap * tanh((score + table[head][q - k + 52 - 1] + t_k[k] + tensor[head][q]) / cap)"
    assert texts.mask_text == "q >= k"
    assert list(texts.captures) == ["table", "t_k", "tensor", "cap"]
    assert texts.captures["table"] is table


def test_gradients_pass_through_conversions_and_frozen_tensors_have_none():
    frozen, learnt = draw(1, H), draw(2, H).double().requires_grad_()
    out = strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s * frozen[h] + learnt[h] * k)
    out.backward(D_OUT)
    assert learnt.grad.dtype == torch.float64
    assert learnt.grad.abs().max() > 0
    assert frozen.grad is None


def test_compiled_and_exported():
    slope, table = draw(1, H).requires_grad_(), draw(2, H, SQ + SK).requires_grad_()

    def call(q, k, v):
        block_mask = strobe.torch.create_block_mask(lambda b, h, i, j: (j <= i) | (j < 9), None, None, SQ, SK)
        return strobe.torch.flex_attention(
            q, k, v, lambda s, b, h, i, j: torch.tanh(s) + slope[h] * (j - i) + table[h, i - j + SK], block_mask
        )

    def gradients(out):
        return torch.autograd.grad((out * D_OUT).sum(), [slope, table])

    torch._dynamo.reset()
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
