# SPDX-License-Identifier: Apache-2.0
"""flex_attention with BlockMasks of PyTorch whose blocks say more than their mask_mod, against float64."""

import expression_reference
import pytest
import strobe.torch
import torch
from expression_reference import copies, draw
from flex_functions import causal
from strobe.torch.flex import TraceError, blocks
from strobe.torch.flex.blocks import with_blocks
from torch.nn.attention import flex_attention as pytorch

B, H, SQ, SK, D = 2, 2, 200, 260, 16
Q, K, V = draw(1, B, H, SQ, D), draw(2, B, H, SK, D), draw(3, B, H, SK, D)
D_OUT = draw(4, B, H, SQ, D)
LENGTHS = torch.tensor([180, 230])


def lists(dense):
    """Counts and indices of a bool tensor [batch, heads, rows, columns], and as few indices as there may be."""
    counts = dense.sum(-1).int()
    indices = torch.argsort(dense.int(), dim=-1, descending=True, stable=True).int()
    return counts, indices[..., : max(1, int(counts.max()))].contiguous()


def block_mask(partial, full, size, mask_mod, seq_lengths=(SQ, SK)):
    given = (*lists(partial), *(lists(full) if full is not None else (None, None)))
    return pytorch.BlockMask.from_kv_blocks(
        *given, BLOCK_SIZE=size, mask_mod=mask_mod, seq_lengths=seq_lengths, compute_q_blocks=False
    )


def visible(partial, full, size, mask_mod):
    """Blocks and mask_mod, pair by pair."""
    partial, full = (
        x.repeat_interleave(size[0], 2).repeat_interleave(size[1], 3)[:, :, :SQ, :SK] for x in (partial, full)
    )
    seen = expression_reference.of_pairs(mask_mod or pytorch.noop_mask, [torch.arange(n) for n in (B, H, SQ, SK)])
    return (full | (partial & seen)).expand(B, H, SQ, SK)


def check(mask, seen):
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    out = strobe.torch.flex_attention(*leaves, block_mask=mask)
    out.backward(D_OUT)
    wanted = copies(Q, K, V)
    transposed = (x.transpose(1, 2) for x in wanted)
    o, _ = expression_reference.attention(*transposed, mask=lambda b, h, q, k: seen[b, h, q, k])
    o.backward(D_OUT.double().transpose(1, 2))
    torch.testing.assert_close(out.double(), o.transpose(1, 2), rtol=1e-5, atol=2e-5)
    for ours, theirs in zip(leaves, wanted, strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=2e-4)


def drawn(size, batch, heads, seed):
    shape = (batch, heads, -(-SQ // size[0]), -(-SK // size[1]))
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5


FUNCTIONS = {"causal": causal, "lengths": lambda b, h, q, k: k < LENGTHS[b], "none": None}


@pytest.mark.parametrize("mask_mod", FUNCTIONS)
@pytest.mark.parametrize("size", [(64, 64), (128, 128), (256, 256), (128, 64), (32, 48)])
@pytest.mark.parametrize("extents", [(1, 1), (B, H), (1, H)])
def test_blocks_and_mask_mod(mask_mod, size, extents):
    partial = drawn(size, *extents, 5)
    mask = block_mask(partial, None, size, FUNCTIONS[mask_mod])
    check(mask, visible(partial, torch.zeros_like(partial), size, FUNCTIONS[mask_mod]))


@pytest.mark.parametrize("mask_mod", FUNCTIONS)
@pytest.mark.parametrize("size", [(64, 64), (128, 64)])
@pytest.mark.parametrize("extents", [(1, 1), (B, H)])
def test_full_blocks_skip_mask_mod(mask_mod, size, extents):
    full = drawn(size, *extents, 6)
    partial = drawn(size, *extents, 7) & ~full
    mask = block_mask(partial, full, size, FUNCTIONS[mask_mod])
    check(mask, visible(partial, full, size, FUNCTIONS[mask_mod]))


MASKS = {
    "causal": causal,
    "lengths": FUNCTIONS["lengths"],
    "heads": lambda b, h, q, k: (h == 0) | (q >= k),
    "everything": pytorch.noop_mask,
    "window": lambda b, h, q, k: (q - k).abs() < 70,
}


@pytest.mark.parametrize("pairs_at_once", [1, blocks._PAIRS_AT_ONCE])
@pytest.mark.parametrize("name", MASKS)
def test_blocks_that_follow_from_mask_mod_are_left_out(name, pairs_at_once, monkeypatch):
    """Those of create_block_mask. Lists that lack a row do not follow, and are seen to change, in place or not."""
    monkeypatch.setattr(blocks, "_PAIRS_AT_ONCE", pairs_at_once)
    size = (64, 32)
    mask = pytorch.create_block_mask(MASKS[name], B, H, SQ, SK, device="cpu", BLOCK_SIZE=size)
    function = None if name == "everything" else MASKS[name]
    assert with_blocks(mask, function, SQ, SK) == (function, {})
    assert mask.full_kv_num_blocks[1, 1, 2] > 0
    given = mask.full_kv_num_blocks.clone()
    mask.full_kv_num_blocks[1, 1, 2] = 0
    assert with_blocks(mask, function, SQ, SK) != (function, {})
    mask.full_kv_num_blocks = given
    assert with_blocks(mask, function, SQ, SK) == (function, {})


def test_blocks_of_pytorch_give_what_its_mask_mod_does():
    """With each of what create_block_mask can be asked for, while a function is looked at and while it is not."""
    wanted = visible(*2 * [torch.zeros(1, 1, 1, 1, dtype=torch.bool)], (SQ, SK), None) | (
        torch.arange(SQ)[:, None] >= torch.arange(SK)
    )
    for options in ({}, {"separate_full_blocks": False}, {"BLOCK_SIZE": (64, 128)}):
        check(pytorch.create_block_mask(causal, None, None, SQ, SK, device="cpu", **options), wanted)
    with torch.inference_mode():
        mask = pytorch.create_block_mask(causal, None, None, SQ, SK, device="cpu")
    out = strobe.torch.flex_attention(Q, K, V, block_mask=mask)
    torch.testing.assert_close(
        out, strobe.torch.attention(*(x.transpose(1, 2) for x in (Q, K, V)), causal="top_left").transpose(1, 2)
    )


@pytest.mark.parametrize("size", [(64, 64), (32, 32)])
def test_a_mask_of_more_queries_and_keys_than_the_call(size):
    more = torch.rand((1, 1, 400 // size[0], 500 // size[1]), generator=torch.Generator().manual_seed(8)) < 0.5
    mask = block_mask(more, None, size, causal, (400, 500))
    check(mask, visible(more, torch.zeros_like(more), size, causal))


SHIFTS = torch.tensor([0, 64, 0, 128])


def shifted(b, h, q, k):
    return q + SHIFTS[b] >= k


def test_a_slice_of_a_mask():
    """Of sequences, heads and blocks of queries, with the function that PyTorch asks for there."""
    mask = pytorch.create_block_mask(shifted, 4, H, SQ, SK, device="cpu", BLOCK_SIZE=64)
    for first, of_heads in ((1, slice(None)), (2, slice(1, 2))):
        part = mask[first : first + B, of_heads]
        with pytest.raises(RuntimeError, match="Cannot use mask_mod from a sliced BlockMask"):
            strobe.torch.flex_attention(Q, K, V, block_mask=part)
        part.mask_mod = lambda b, h, q, k, first=first: shifted(b + first, h, q, k)
        check(part, expression_reference.of_pairs(part.mask_mod, [torch.arange(n) for n in (B, H, SQ, SK)]))
    rows = mask[:1, :, torch.tensor([1, 2])]
    rows.seq_lengths, rows.mask_mod = (128, SK), lambda b, h, q, k: shifted(b, h, q + 64, k)
    out = strobe.torch.flex_attention(Q[:1, :, 64:192], K[:1], V[:1], block_mask=rows)
    whole = strobe.torch.flex_attention(
        Q[:1], K[:1], V[:1], block_mask=pytorch.create_block_mask(shifted, 1, 1, SQ, SK, "cpu")
    )
    torch.testing.assert_close(out, whole[:, :, 64:192])


def test_the_mask_of_one_block_is_for_every_call():
    """What PyTorch makes where a call has no mask."""
    mask = pytorch._create_empty_block_mask(Q, K)
    assert torch.equal(strobe.torch.flex_attention(Q, K, V, block_mask=mask), strobe.torch.flex_attention(Q, K, V))


def test_masks_without_blocks_of_queries_and_from_the_compiler():
    wanted = strobe.torch.flex_attention(Q, K, V, block_mask=strobe.torch.create_block_mask(causal, None, None, SQ, SK))
    mask = torch.compile(pytorch.create_block_mask, backend="eager")(causal, 1, 1, SQ, SK, device="cpu")
    mask.q_num_blocks = mask.q_indices = mask.full_q_num_blocks = mask.full_q_indices = None
    torch.testing.assert_close(strobe.torch.flex_attention(Q, K, V, block_mask=mask), wanted)


@pytest.mark.parametrize("score_mod", [None, lambda s, b, h, q, k: s * 2 + (q - k) * 0.1])
def test_pages_of_pytorch(score_mod):
    """PagedAttention's cache: the functions that it converts look logical positions up in its tables."""
    pages = pytest.importorskip("torch.nn.attention.experimental._paged_attention")
    size, count = 16, 40
    cache = pages.PagedAttention(count, size, 3, device="cpu")
    for sequence, length in ((0, 20), (1, SK), (0, SK)):
        cache.reserve(torch.tensor(sequence), torch.tensor(length))
    k, v = torch.zeros(1, H, count * size, D), torch.zeros(1, H, count * size, D)
    cache.assign(torch.arange(B), torch.arange(SK).expand(B, SK), K, V, k, v)
    logical = pytorch.create_block_mask(causal, B, 1, SQ, SK, device="cpu", BLOCK_SIZE=size)
    paged = cache.convert_logical_block_mask(logical)
    out = strobe.torch.flex_attention(Q, k, v, cache.get_score_mod(score_mod), paged)
    torch.testing.assert_close(out, strobe.torch.flex_attention(Q, K, V, score_mod, logical))


def test_compiled_calls_have_the_blocks():
    full = drawn((64, 64), 1, 1, 6)
    mask = block_mask(~full, full, (64, 64), causal)

    def call(q, k, v):
        return strobe.torch.flex_attention(q, k, v, block_mask=mask)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(Q, K, V), call(Q, K, V))


def test_errors_name_the_users_function():
    def hides(b, h, q, k):
        return q > k and h > 0

    mask = block_mask(drawn((32, 32), 1, 1, 5), None, (32, 32), hides)
    with pytest.raises(TraceError, match=r"mask_mod `hides` \(.*test_torch_flex_blocks.py, line"):
        strobe.torch.flex_attention(Q, K, V, block_mask=mask)


def test_arguments_of_create_block_mask():
    create = strobe.torch.create_block_mask
    further = {"separate_full_blocks": False, "compute_dq_write_order": True, "dq_kv_order": False, "_compile": False}
    assert create(causal, B, H, SQ, SK, "cpu", 64, **further) == create(causal, B, H, SQ, SK, "cpu", (64, 64))
    with pytest.raises(TypeError, match="unexpected keyword argument 'BLOCKSIZE'"):
        create(causal, B, H, SQ, SK, BLOCKSIZE=64)


def test_what_a_mask_has_beside_its_function():
    """Where PyTorch's has the same: to, sparsity and BLOCK_SIZE; blocks to index it has not."""
    arguments = (causal, None, None, SQ, SK)
    mask, theirs = strobe.torch.create_block_mask(*arguments), pytorch.create_block_mask(*arguments, device="cpu")
    moved = mask.to(torch.device("cpu"))
    assert moved.sparsity() == theirs.sparsity() > 0
    assert (moved.BLOCK_SIZE, moved.seq_lengths) == (theirs.BLOCK_SIZE, theirs.seq_lengths)
    out = strobe.torch.flex_attention(Q, K, V, block_mask=moved)
    assert torch.equal(out, strobe.torch.flex_attention(Q, K, V, block_mask=mask))
    with pytest.raises(NotImplementedError, match="has no blocks to index"):
        mask[0]
