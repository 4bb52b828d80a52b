# SPDX-License-Identifier: Apache-2.0
"""The masks of attn_implementation="strobe": each mask function of transformers, with padding, caches and documents.

Reference: softmax in float64 under the boolean mask that transformers itself makes for "sdpa".
"""

from types import SimpleNamespace

import pytest
import torch
from strobe.integrations.transformers.attention import attend
from strobe.integrations.transformers.mask import Kind
from strobe.integrations.transformers.masks import make_mask
from transformers import masking_utils

BATCH, SEQLEN, HEADS, HEADS_KV, HEAD_DIM = 3, 13, 4, 2, 8


def no_padding():
    return torch.ones(BATCH, SEQLEN, dtype=torch.bool)


def on_the_right():
    return torch.arange(SEQLEN)[None] < torch.tensor([13, 5, 9])[:, None]


def on_the_left():
    return on_the_right().flip(1)


def on_both_sides():
    tokens = on_the_left()
    tokens[0, 11:] = False
    tokens[2, :2] = True
    tokens[2, 8:] = False
    tokens[2, :2] = False
    return tokens


def with_holes():
    tokens = on_the_left()
    tokens[0, 3:5] = False
    tokens[2, 7] = False
    return tokens


def an_empty_sequence():
    tokens = on_the_left()
    tokens[1] = False
    return tokens


PADDINGS = (no_padding, on_the_right, on_the_left, on_both_sides, with_holes, an_empty_sequence)


def chunks(tokens):
    start = (tokens.cumsum(1) == 0).sum(1)
    return masking_utils.chunked_causal_mask_function(4, start)


def blocks(_):
    ids = torch.full((BATCH, SEQLEN), -1)
    ids[:, 2:6] = 0
    overlay = masking_utils.blockwise_overlay(ids)
    return masking_utils.or_masks(masking_utils.causal_mask_function, overlay)


FUNCTIONS = {
    "causal": lambda _: masking_utils.causal_mask_function,
    "all": lambda _: masking_utils.bidirectional_mask_function,
    "window": lambda _: masking_utils.sliding_window_causal_mask_function(4),
    "window of 1": lambda _: masking_utils.sliding_window_causal_mask_function(1),
    "window on both sides": lambda _: masking_utils.sliding_window_bidirectional_mask_function(3),
    "chunks": chunks,
    "blocks": blocks,
}


def tensors(seqlen_q, seqlen_k, grad=False):
    generator = torch.Generator().manual_seed(7)
    shapes = ((HEADS, seqlen_q), (HEADS_KV, seqlen_k), (HEADS_KV, seqlen_k))
    return [torch.randn(BATCH, *shape, HEAD_DIM, generator=generator).requires_grad_(grad) for shape in shapes]


def reference(q, k, v, mask):
    """[batch, seqlen_q, heads, head_dim] in float64."""
    k, v = (x.double().repeat_interleave(HEADS // HEADS_KV, 1) for x in (k, v))
    scores = (q.double() @ k.mT * HEAD_DIM**-0.5).masked_fill(~mask, float("-inf"))
    return (torch.softmax(scores, -1).nan_to_num(0.0) @ v).transpose(1, 2)


def strobe(q, k, v, mask, module=None, **keywords):
    return attend(module or SimpleNamespace(is_causal=True), q, k, v, mask, **keywords)[0]


def wanted_mask(call):
    return masking_utils.sdpa_mask(**call | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def check(call, rows, grad=False):
    """The tensor that a model would see, and attention: rows [batch, seqlen_q] are those of tokens."""
    mask, wanted = make_mask(**call), wanted_mask(call)
    q, k, v = tensors(call["q_length"], call["kv_length"], grad)
    o, o_wanted = strobe(q, k, v, mask), reference(q, k, v, wanted)
    torch.testing.assert_close(o[rows].double(), o_wanted[rows], rtol=1e-5, atol=1e-5)
    if mask is not None:
        assert torch.equal((mask == 0)[:, 0][rows], wanted[:, 0][rows])
    if grad:
        d_o = torch.randn(o.shape, generator=torch.Generator().manual_seed(8)) * rows[..., None, None]
        for d, d_wanted in zip(
            torch.autograd.grad(o, (q, k, v), d_o), torch.autograd.grad(o_wanted, (q, k, v), d_o.double()), strict=True
        ):
            torch.testing.assert_close(d, d_wanted, rtol=1e-4, atol=1e-5)
    return mask


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_self_attention(name, padding, grad):
    tokens = padding()
    call = {
        "batch_size": BATCH,
        "q_length": SEQLEN,
        "kv_length": SEQLEN,
        "mask_function": FUNCTIONS[name](tokens),
        "attention_mask": tokens,
        "allow_is_causal_skip": name == "causal",
        "allow_is_bidirectional_skip": name == "all",
    }
    mask = check(call, tokens, grad)
    if name == "blocks":
        assert mask.plan.kind is Kind.EXACT
    else:
        assert mask is None or mask.plan.kind is not Kind.EXACT


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("room", [0, 6])
@pytest.mark.parametrize("seqlen_q", [1, 4])
@pytest.mark.parametrize("name", ["causal", "window", "window of 1", "chunks", "blocks"])
def test_a_cache(name, seqlen_q, room, padding):
    """The last queries of a sequence, in a cache that has room behind them."""
    tokens = padding()
    call = {
        "batch_size": BATCH,
        "q_length": seqlen_q,
        "kv_length": SEQLEN + room,
        "q_offset": torch.tensor(SEQLEN - seqlen_q) if room else SEQLEN - seqlen_q,
        "mask_function": FUNCTIONS[name](tokens),
        "attention_mask": tokens,
        "allow_is_causal_skip": name == "causal",
    }
    if name == "blocks":
        call["mask_function"] = masking_utils.or_masks(
            masking_utils.causal_mask_function,
            masking_utils.blockwise_overlay(torch.full((BATCH, SEQLEN + room), -1)),
        )
    check(call, tokens[:, -seqlen_q:])


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("seqlen_q", [1, 4, SEQLEN, 20])
def test_cross_attention(seqlen_q, padding):
    """The padding is that of the keys; there are fewer queries, as many, or more."""
    call = {
        "batch_size": BATCH,
        "q_length": seqlen_q,
        "kv_length": SEQLEN,
        "mask_function": masking_utils.bidirectional_mask_function,
        "attention_mask": padding(),
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": True,
    }
    module = SimpleNamespace(is_causal=False)
    mask, wanted = make_mask(**call), wanted_mask(call)
    q, k, v = tensors(seqlen_q, SEQLEN, grad=True)
    torch.testing.assert_close(strobe(q, k, v, mask, module).double(), reference(q, k, v, wanted), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(
            strobe(q, k, v, mask, module).double(), reference(q, k, v, wanted), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("name", ["causal", "window", "window on both sides", "chunks"])
@pytest.mark.parametrize("batch", [1, 3])
def test_documents(name, batch):
    """Their positions begin again, and need not begin at 0."""
    rows = [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 3], [5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8], list(range(13))]
    positions = torch.tensor(rows[:batch])
    documents = masking_utils.find_packed_sequence_indices(positions)
    tokens = torch.ones(batch, SEQLEN, dtype=torch.bool)
    function = masking_utils.packed_sequence_compatibility_function(FUNCTIONS[name](tokens), positions, documents)
    call = {
        "batch_size": batch,
        "q_length": SEQLEN,
        "kv_length": SEQLEN,
        "mask_function": function,
        "attention_mask": None,
        "allow_is_causal_skip": False,
    }
    mask, wanted = make_mask(**call), wanted_mask(call)
    assert mask.plan.kind is (Kind.EXACT if name == "chunks" else Kind.DOCUMENTS)
    assert torch.equal(mask == 0, wanted)
    q, k, v = (x[:batch].detach().requires_grad_() for x in tensors(SEQLEN, SEQLEN))
    o, o_wanted = strobe(q, k, v, mask), reference(q, k, v, wanted)
    torch.testing.assert_close(o.double(), o_wanted, rtol=1e-5, atol=1e-5)
    d_o = torch.randn(o.shape, generator=torch.Generator().manual_seed(8))
    for d, d_wanted in zip(
        torch.autograd.grad(o, (q, k, v), d_o), torch.autograd.grad(o_wanted, (q, k, v), d_o.double()), strict=True
    ):
        torch.testing.assert_close(d, d_wanted, rtol=1e-4, atol=1e-5)
