# SPDX-License-Identifier: Apache-2.0
"""The calls that context_parallel.py computes on several ranks: every option of attention, alone and with others.

bench/gpu/context_parallel.py computes them on several GPUs.
"""

import strobe.torch
import torch

HEADS, HEAD_DIM, HEAD_DIM_V = 4, 16, 8
SEQLEN = 70
DOCUMENTS = (0, 9, 9, 40, 41, 70)  # the second is empty
LONG_DOCUMENTS = (0, 768, 1536)  # of 12 blocks of 64


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def call(batch=2, heads=HEADS, heads_kv=2, seqlen=SEQLEN, dtype=torch.float32, **options):
    """Whole tensors and options; without a batch they are packed."""
    lead = (seqlen,) if batch is None else (batch, seqlen)
    shapes = {"q": (heads, HEAD_DIM), "k": (heads_kv, HEAD_DIM), "v": (heads_kv, HEAD_DIM_V)}
    tensors = {name: draw(*lead, *shape, seed=i).to(dtype) for i, (name, shape) in enumerate(shapes.items())}
    return tensors | options


def packed(**options):
    return call(batch=None, **options)


SLOPES = draw(HEADS, seed=5).abs()
SINK = draw(HEADS, seed=4)
BLOCKS = (draw(2, HEADS, 4, 4, seed=6) > 0).to(torch.uint8)
LONG_BLOCKS = (draw(2, HEADS, 12, 12, seed=6) > 0).to(torch.uint8)
USED = torch.tensor([70, 41], dtype=torch.int32)
USED_DOCUMENTS = torch.tensor([9, 0, 20, 1, 29], dtype=torch.int32)
CASES = {
    "plain": call(),
    "causal": call(causal=True),
    "one row a rank at most": call(seqlen=3, causal=True),
    "one sequence": call(batch=1, causal=True),
    "one launch": call(batch=1, seqlen=96, causal=True, sink=SINK, alibi_slopes=SLOPES),
    "one row-invariant launch": call(batch=1, seqlen=96, causal=True, window=(50, 0), row_invariant=True),
    "top left": call(causal="top_left"),
    "heads": call(heads_kv=4, causal=True),
    "one key head": call(heads_kv=1, causal=True),
    "many heads": call(heads=12, heads_kv=6, causal=True),
    "window": call(causal=True, window=(11, 0)),
    "window on both sides": call(window=(11, 5)),
    "window to the right": call(window=(-1, 3)),
    "softcap": call(causal=True, softcap=2.0),
    "chunks": call(causal=True, chunk=16),
    "chunks without a mask": call(chunk=16),
    "slopes": call(causal=True, alibi_slopes=SLOPES),
    "slopes without a mask": call(alibi_slopes=SLOPES),
    "dropout": call(causal=True, dropout=0.3, seed=5, offset=7),
    "used lengths": call(causal=True, seqused_q=USED, seqused_k=USED, sink=SINK),
    "used lengths without a mask": call(seqused_k=USED),
    "used lengths from the top": call(causal="top_left", seqused_q=USED, seqused_k=USED, chunk=32),
    "fewer keys than queries": call(causal=True, window=(30, 0), seqused_k=USED),
    "more keys than queries": call(causal=True, alibi_slopes=SLOPES, seqused_q=USED),
    "slopes by batch": call(causal=True, alibi_slopes=draw(2, HEADS, seed=7).abs()),
    "sink": call(causal=True, window=(20, 0), sink=SINK),
    "scale": call(causal=True, scale=0.3),
    "a learnt scale": call(causal=True, scale=torch.tensor([0.3, 0.2, 0.1, 0.4])),
    "log length": call(causal=True, log_length=8),
    "bias": call(causal=True, bias=draw(2, HEADS, SEQLEN, SEQLEN, seed=3)),
    "bias of all": call(bias=draw(1, 1, SEQLEN, SEQLEN, seed=3)),
    "bias of heads and dropout": call(bias=draw(1, HEADS, SEQLEN, SEQLEN, seed=3), dropout=0.2, seed=9),
    "mask": call(causal=True, mask=draw(2, 1, SEQLEN, SEQLEN, seed=3) > -1),
    "mask of keys": call(mask=draw(2, SEQLEN, seed=3) > -1),
    "mask of numbers": call(mask=draw(2, HEADS, SEQLEN, SEQLEN, seed=3), bias=draw(1, 1, SEQLEN, SEQLEN, seed=4)),
    "blocks": call(batch=2, seqlen=4 * 64, causal=True, block_mask=BLOCKS, block_size=64),
    "deterministic": call(causal=True, deterministic=True),
    "row-invariant": call(causal=True, window=(30, 0), row_invariant=True),
    "bfloat16": call(causal=True, dtype=torch.bfloat16),
    "documents": packed(causal=True),
    "documents without a mask": packed(),
    "documents with windows": packed(causal=True, window=(7, 0), sink=SINK, heads_kv=4),
    "documents with slopes": packed(causal=True, alibi_slopes=draw(len(DOCUMENTS) - 1, HEADS, seed=8).abs()),
    "documents with windows on both sides": packed(window=(7, 3)),
    "documents with chunks": packed(causal=True, chunk=8),
    "documents with dropout": packed(causal=True, dropout=0.3, seed=5),
    "documents with dropout and windows": packed(causal=True, window=(7, 0), dropout=0.2, seed=5, offset=3),
    "documents with used lengths": packed(causal=True, seqused_q=USED_DOCUMENTS, seqused_k=USED_DOCUMENTS),
    "documents with used keys": packed(window=(9, 4), seqused_k=USED_DOCUMENTS),
    "row-invariant documents": packed(causal=True, row_invariant=True),
    "documents with blocks": call(
        batch=None, seqlen=LONG_DOCUMENTS[-1], causal=True, block_mask=LONG_BLOCKS, block_size=64
    ),
}
REFUSED = {  # by case, the schemes that do not have it
    **dict.fromkeys(("row-invariant", "row-invariant documents", "one row-invariant launch"), ("ring",)),
    "blocks": ("gather", "ring"),
    "documents with blocks": ("gather", "ring"),  # of layouts whose runs do not begin with a block
}
LEARNT = ("q", "k", "v", "bias", "sink", "scale")
ROW_AXES = {"q": -3, "k": -3, "v": -3, "bias": 2, "mask": -2}  # of the tensors that ranks have their rows of


def has_rows(name, x):
    """A mask of keys has none."""
    return name in ROW_AXES and x.ndim > 2


def lengths(given):
    """Where packed sequences begin and end."""
    if given["q"].ndim == 4:
        return None
    return DOCUMENTS if len(given["q"]) == DOCUMENTS[-1] else LONG_DOCUMENTS


def leaves_of(given):
    leaves = {
        name: given[name].clone().requires_grad_() for name in LEARNT if isinstance(given.get(name), torch.Tensor)
    }
    return leaves, given | leaves


def loss_of(out, lse):
    return (out.float().sin() * 3).sum() + lse.exp().log1p().sum()


def alone(given):
    """out, lse and gradients of the whole call by one process."""
    leaves, given = leaves_of(given)
    if lengths(given):
        ends = torch.tensor(lengths(given), dtype=torch.int32, device=given["q"].device)
        longest = int(ends.diff().max())  # how many blocks a mask has
        given |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": longest, "max_seqlen_k": longest}
    out, lse, largest = strobe.torch.attention(**given, return_lse=True, return_max_logits=True)
    return (
        out.detach(),
        lse.detach(),
        largest,
        dict(zip(leaves, torch.autograd.grad(loss_of(out, lse), leaves.values()), strict=True)),
    )


def shared(cp, given):
    """The same of this rank's rows."""
    leaves, mine = leaves_of(
        {
            name: cp.shard(x, ROW_AXES[name], cu_seqlens=lengths(given)) if has_rows(name, x) else x
            for name, x in given.items()
        }
    )
    cp.set_sequences(given["q"].shape[-3], cu_seqlens=lengths(given))
    out, lse, largest = cp.attention(**mine, return_lse=True, return_max_logits=True)
    return (
        out.detach(),
        lse.detach(),
        largest,
        dict(zip(leaves, torch.autograd.grad(loss_of(out, lse), leaves.values()), strict=True)),
    )


def rows_of(cp, given):
    """Where this rank's rows are in the whole."""
    return cp.shard(torch.arange(given["q"].shape[-3], device=given["q"].device), 0, cu_seqlens=lengths(given))
