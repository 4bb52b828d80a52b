# SPDX-License-Identifier: Apache-2.0
"""flex_attention: functions as PyTorch's FlexAttention takes them, against float64 and against PyTorch's own."""

import functools

import numpy as np
import pytest
import strobe
import strobe.torch
import torch
from expression_reference import draw
from flex_check import check
from flex_functions import D_OUT, LENGTHS, MASKS, SCORES, SK, SQ, B, H, K, Q, V, causal
from strobe.torch.flex import TraceError
from strobe.torch.flex.tracing import Sizes, trace
from torch.nn.attention import flex_attention as pytorch


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
    "a function that there is not": (lambda s, b, h, q, k: torch.erf(s), "`erf` of a traced value (gelu has"),
    "a method that there is not": (lambda s, b, h, q, k: s.cumsum(0), "`cumsum` of a traced value"),
    "a sum of rows": (lambda s, b, h, q, k: s + Q[b, h].sum(), "`sum` of a tensor that has 2 axes without an index"),
    "a row": (lambda s, b, h, q, k: s + Q[b, h, q], "the value of a row of 16 elements: index it"),
    "a long row": (lambda s, b, h, q, k: s + Q.flatten(2)[b, h].sum(), "`sum` of a row of 640 elements, where 1 to 64"),
    "rows of two lengths": (lambda s, b, h, q, k: s + (Q[b, h, q] * K[b, h, k][:9]).sum(), "rows of 9 and 16 elements"),
    "a product of two lengths": (lambda s, b, h, q, k: s + Q[b, h, q].dot(Q[b, h, 0][:9]), "rows of 16 and 9 elements"),
    "a row by a value": (lambda s, b, h, q, k: s + Q[b, h, q] @ s, "`matmul` of a row and something else"),
    "an order of norms": (lambda s, b, h, q, k: s + Q[b, h, q].norm(1), "`norm` of order 1, where 2 is"),
    "a sum along another axis": (lambda s, b, h, q, k: s + Q[b, h, q].sum(1), "`sum` of a row with other arguments"),
    "the shape of a row": (lambda s, b, h, q, k: s + Q[b, h, q].reshape(4, 4)[0, 0], "`reshape` of a row of 16"),
    "a row by a position": (lambda s, b, h, q, k: s + (Q[b, h, q] * 2)[q], "an index that is no number of a row of 16"),
    "an axis between": (lambda s, b, h, q, k: s + q.unsqueeze(1), "unsqueeze(1) of a traced value, which has no axes"),
    "no index": (lambda s, b, h, q, k: s + LENGTHS, "a tensor of shape [2] that has no indices"),
    "too many indices": (lambda s, b, h, q, k: s + LENGTHS[b, h], "2 indices of a tensor that has 1 axes"),
    "a slice": (lambda s, b, h, q, k: s + LENGTHS[b:], "an index of type slice"),
    "an index that is no integer": (lambda s, b, h, q, k: s + LENGTHS[s], "an index that is no integer"),
    "bits": (lambda s, b, h, q, k: s + (q & k), "`&` of integers, where none is a number without a sign"),
    "bits of a real": (lambda s, b, h, q, k: s & 1, "`&` of integers, where none is a number without a sign"),
    "one of a list": (lambda s, b, h, q, k: s + torch.isin(q, LENGTHS), "`isin` of a traced value (compare with each"),
    "a property": (lambda s, b, h, q, k: s + s.data, "`.data` of a traced value"),
    "a property of a row": (lambda s, b, h, q, k: s + Q[b, h, q].data.sum(), "`.data` of a tensor that has an axis"),
    "a property of a computed row": (lambda s, b, h, q, k: s + (-Q[b, h, q]).data.sum(), "`.data` of a row of 16"),
    "a variable shift": (lambda s, b, h, q, k: s + (q >> k), "a shift that is not of an integer"),
    "a gelu by erf": (lambda s, b, h, q, k: torch.nn.functional.gelu(s), '`gelu` with approximate="none"'),
    "in place": (lambda s, b, h, q, k: s.add_(1), "it writes to a traced value"),
    "text": (lambda s, b, h, q, k: "score", "a str, where a number or a tensor is needed"),
    "nothing": (lambda s, b, h, q, k: None, "a NoneType, where a number or a tensor is needed"),
    "a variable exponent": (lambda s, b, h, q, k: s**s, "to the power of another"),
    "nan": (lambda s, b, h, q, k: s + float("nan"), "nan as a constant"),
    "a large integer": (lambda s, b, h, q, k: s + (q + 2**40), "1099511627776 is beyond int32"),
    "a product of 33 bits": (
        lambda s, b, h, q, k: s + (q * 2000003 * (k + 1)) % 7, "an integer that may be 4056006084: texts have 32 bits",
    ),
    "a power of 40 bits": (lambda s, b, h, q, k: s + (k + 200) ** 5, "an integer that may be"),
    "a shift of 33 bits": (lambda s, b, h, q, k: s + ((-k) << 27), "an integer that may be -6845104128"),
    "a key of a dict": (lambda s, b, h, q, k: s * {0: 1, 1: 2}[h], "a traced value as a key of a dict or a set"),
    "an array": (lambda s, b, h, q, k: s * np.ones(3), "a ndarray of shape [3], where a number or a tensor is needed"),
    "an unknown argument": (lambda s, b, h, q, k: torch.div(s, 2, rounding_mode="up"), 'rounding_mode="up"'),
    "ids by a search": (
        lambda s, b, h, q, k: s + torch.searchsorted(LENGTHS, q), "`searchsorted` of a traced value (compute the",
    ),
    "ids by buckets": (lambda s, b, h, q, k: s + torch.bucketize(q, LENGTHS), "`bucketize` of a traced value (compute"),
    "an index in a function": (
        lambda s, b, h, q, k: s + torch.index_select(LENGTHS, 0, b), "`index_select` of a traced value (index the",
    ),
    "decimals": (lambda s, b, h, q, k: torch.round(s, decimals=2), "`round` with decimals=2"),
    "a shape": (lambda s, b, h, q, k: s.view(1), "a shape other than () of a traced value"),
    "a type by name": (lambda s, b, h, q, k: s.type("torch.IntTensor"), ".type('torch.IntTensor') (write .to(dtype)"),
    "bytes of more": (lambda s, b, h, q, k: s + (q * 9).to(torch.uint8), "torch.uint8 of an integer that may be 351"),
    "a list": (lambda s, b, h, q, k: s.new_tensor([1, 2]), "a new tensor of several elements"),
    "a tensor as an exponent": (lambda s, b, h, q, k: s ** LENGTHS[0], "a tensor as an argument that must be a number"),
    "a tensor to a power": (lambda s, b, h, q, k: LENGTHS[0] ** s, "to the power of another"),
    "doubling": (lambda s, b, h, q, k: functools.reduce(lambda x, _: x * x, range(30), s), "more than 4096 characters"),
    "where of one": (lambda s, b, h, q, k: s + torch.where(q > k), "torch.where of other arguments than a condition"),
    "a row compared": (lambda s, b, h, q, k: (Q[b, h] > 0) * s, "`gt` of a tensor that has 2 axes"),
    "a negative row": (lambda s, b, h, q, k: s + -Q[b, h, q], "the value of a row of 16 elements"),
    "the truth of a row": (lambda s, b, h, q, k: s if Q[b, h, q] else -s, "`bool` of a tensor that has an axis"),
    "the truth of a computed row": (lambda s, b, h, q, k: s if Q[b, h, q] > 0 else -s, "`bool` of a row of 16"),
    "a product of matrices": (lambda s, b, h, q, k: s @ s, "`matmul` of a traced value"),
    "a quotient and a remainder": (lambda s, b, h, q, k: s + sum(divmod(q, 3)), "`divmod` of a traced value"),
    "a shift by a position": (lambda s, b, h, q, k: s + (1 << q), "a shift that is not of an integer"),
    "a shift down by a position": (lambda s, b, h, q, k: s + (64 >> q), "a shift that is not of an integer"),
    "an axis of a value": (lambda s, b, h, q, k: s + q[0], "an index of a traced value"),
    "a row of a value": (lambda s, b, h, q, k: s[None], "an index of a traced value"),
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


MANY = [draw(i, SK) for i in range(9)]
BEYOND_LIMITS = {
    "more tensors": (lambda s, b, h, q, k: s + sum(t[k] for t in MANY), "more than 8 tensors"),
    "more reads": (lambda s, b, h, q, k: s + sum(MANY[0][k + i] for i in range(17)), "of which 16 are the most"),
    "rows by one another": (lambda s, b, h, q, k: s + Q[b, h, q] @ K[b, h, k], "of which 16 are the most"),
    "more axes": (lambda s, b, h, q, k: s + Q[None][0 * b, b, h, q, 0], "a tensor of 5 axes, where 4 are the most"),
    "more levels": (lambda s, b, h, q, k: functools.reduce(lambda x, _: 1 - x, range(70), s), "more than 64 levels"),
    "more operations": (lambda s, b, h, q, k: functools.reduce(lambda x, i: x + i, range(600), s), "512 operations"),
    "a truth as a score": (lambda s, b, h, q, k: q > k, "its result is a truth, where a score is needed"),
}


@pytest.mark.parametrize("name", BEYOND_LIMITS)
def test_what_is_beyond_the_limits_of_texts_says_where(name):
    score_mod, message = BEYOND_LIMITS[name]
    place = rf"{__file__}, line {score_mod.__code__.co_firstlineno}"
    with pytest.raises(TraceError, match=rf"score_mod `<lambda>` \({place}\) cannot be written as text: .*{message}"):
        strobe.torch.flex_attention(Q, K, V, score_mod)


def test_a_mask_beyond_the_limits_of_texts_says_where():
    def hides(b, h, q, k):
        return functools.reduce(lambda x, i: x | (q == i), range(300), q > k)

    block_mask = strobe.torch.create_block_mask
    with pytest.raises(TraceError, match=rf"mask_mod `hides` \({__file__}, line .*512 operations"):
        block_mask(hides, None, None, SQ, SK)


def test_tensors_that_nothing_reads_are_no_captures():
    check(lambda t: lambda s, b, h, q, k: (s[...] * 2, t[k])[0], None, [draw(1, SK)])


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


def test_an_array_with_a_traced_index_says_what_it_is():
    with pytest.raises(IndexError) as caught:
        strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s + np.ones(4)[h])
    assert caught.value.__notes__ == ["score_mod was run on values that stand for positions, which index tensors alone"]


def test_sizes_of_masks_and_blocks():
    make = strobe.torch.create_block_mask
    assert make(causal, np.int64(2), None, np.int64(8), 8, BLOCK_SIZE=[64, 32]).BLOCK_SIZE == (64, 32)
    with pytest.raises(TypeError, match="Q_LEN is of type float: it must be an integer"):
        make(causal, None, None, 8.0, 8)
    with pytest.raises(ValueError, match="KV_LEN is -1: it must be 0 or more"):
        make(causal, None, None, 8, -1)


def test_wrong_calls():
    flex = strobe.torch.flex_attention
    with pytest.raises(TypeError, match="query is of type"):
        flex(Q.numpy(), K, V)
    with pytest.raises(ValueError, match="query must be a dense tensor of rank 4"):
        flex(Q[0], K, V)
    with pytest.raises(ValueError, match="query has 4 heads and key 2: set enable_gqa"):
        flex(Q, K[:, :2], V[:, :2])
    with pytest.raises(TypeError, match="score_mod is of type float: it must be a function of"):
        flex(Q, K, V, 2.0)
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


def test_texts_are_the_same_for_every_length():
    """Of tensors whose index may be negative, as a captured one may: no number of documents is a kernel of its own."""

    def texts(documents):
        doc, scale, table = torch.arange(SK) * documents // SK, draw(1, documents), draw(2, documents, SK)
        return trace(
            lambda s, b, h, q, k: s * scale[doc[q]] + table[-1, k],
            lambda b, h, q, k: doc[q] == doc[k], Sizes(B, H, SQ, SK), torch.float32, torch.device("cpu"),
        )  # fmt: skip

    three, four = texts(3), texts(4)
    assert three[:2] == four[:2]
    assert three.score == "score * scale[doc[q] + (doc[q] < 0 ? scale_len0 : 0)] + table[-1 + table_len0][k]"
    assert [x.captures["scale_len0"].item() for x in (three, four)] == [3, 4]


def test_lengths_are_numbers_where_tensors_leave_no_room():
    tables = {str(i): draw(i, SQ + SK) for i in range(7)}
    check(lambda *t: lambda s, b, h, q, k: s + sum(x[q - k] for x in t), None, tables.values())


def test_an_index_beyond_the_end_reads_zero():
    table, index = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 3, -1, -3, -4, 7])
    out = strobe.torch.flex_attention(Q[..., :7, :], K, V, lambda s, b, h, q, k: s * 0 + k * table[index[q]])
    wanted = torch.tensor([1.0, 4.0, 0.0, 4.0, 1.0, 0.0, 0.0])
    expected = strobe.torch.flex_attention(Q[..., :7, :], K, V, lambda s, b, h, q, k: s * 0 + k * wanted[q])
    assert torch.equal(out, expected)


def test_gradients_pass_through_conversions_and_frozen_tensors_have_none():
    frozen, learnt = draw(1, H), draw(2, H).double().requires_grad_()
    out = strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s * frozen[h] + learnt[h] * k)
    out.backward(D_OUT)
    assert learnt.grad.dtype == torch.float64
    assert learnt.grad.abs().max() > 0
    assert frozen.grad is None
