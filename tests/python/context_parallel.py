# SPDX-License-Identifier: Apache-2.0
"""Attention of sequences that gloo processes share, by the CPU engine; test_torch_context_parallel.py starts them.

Every case runs on 2, 3 and 4 ranks, and every rank compares its rows with what it computes alone.
"""

import datetime
import itertools
import multiprocessing
import sys
import tempfile

import strobe.torch
import torch
from strobe.torch.context_parallel import gather
from torch import distributed

HEADS, HEAD_DIM, HEAD_DIM_V = 4, 16, 8
SEQLEN = 70
DOCUMENTS = (0, 9, 9, 40, 41, 70)  # the second is empty
LAYOUTS = ("zigzag", "contiguous", "documents")
SCHEMES = ("gather", "all_to_all")
LEARNT = ("q", "k", "v", "bias", "sink", "scale")


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
CASES = {
    "plain": call(),
    "causal": call(causal=True),
    "one row a rank at most": call(seqlen=3, causal=True),
    "one sequence": call(batch=1, causal=True),
    "top left": call(causal="top_left"),
    "heads": call(heads_kv=4, causal=True),
    "one key head": call(heads_kv=1, causal=True),
    "many heads": call(heads=12, heads_kv=6, causal=True),
    "window": call(causal=True, window=(11, 0)),
    "softcap": call(causal=True, softcap=2.0),
    "chunks": call(causal=True, chunk=16),
    "slopes": call(causal=True, alibi_slopes=SLOPES),
    "slopes by batch": call(causal=True, alibi_slopes=draw(2, HEADS, seed=7).abs()),
    "sink": call(causal=True, window=(20, 0), sink=SINK),
    "scale": call(causal=True, scale=0.3),
    "a learnt scale": call(causal=True, scale=torch.tensor([0.3, 0.2, 0.1, 0.4])),
    "log length": call(causal=True, log_length=8),
    "bias": call(causal=True, bias=draw(2, HEADS, SEQLEN, SEQLEN, seed=3)),
    "bias of all": call(bias=draw(1, 1, SEQLEN, SEQLEN, seed=3)),
    "blocks": call(batch=2, seqlen=4 * 64, causal=True, block_mask=BLOCKS, block_size=64),
    "deterministic": call(causal=True, deterministic=True),
    "row-invariant": call(causal=True, window=(30, 0), row_invariant=True),
    "bfloat16": call(causal=True, dtype=torch.bfloat16),
    "documents": packed(causal=True),
    "documents without a mask": packed(),
    "documents with windows": packed(causal=True, window=(7, 0), sink=SINK, heads_kv=4),
    "documents with slopes": packed(causal=True, alibi_slopes=draw(len(DOCUMENTS) - 1, HEADS, seed=8).abs()),
    "row-invariant documents": packed(causal=True, row_invariant=True),
}
ROW_AXES = {"q": -3, "k": -3, "v": -3, "bias": 2}  # of the tensors that ranks have their rows of


def lengths(given):
    return DOCUMENTS if given["q"].ndim == 3 else None


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
        ends = torch.tensor(DOCUMENTS, dtype=torch.int32)
        given |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    out, lse = strobe.torch.attention(**given, return_lse=True)
    return (
        out.detach(),
        lse.detach(),
        dict(zip(leaves, torch.autograd.grad(loss_of(out, lse), leaves.values()), strict=True)),
    )


def shared(cp, given):
    """The same of this rank's rows."""
    leaves, _ = leaves_of(
        {
            name: cp.shard(x, ROW_AXES[name], cu_seqlens=lengths(given)) if name in ROW_AXES else x
            for name, x in given.items()
        }
    )
    cp.set_sequences(given["q"].shape[-3], cu_seqlens=lengths(given))
    out, lse = cp.attention(**given | leaves, return_lse=True)
    return (
        out.detach(),
        lse.detach(),
        dict(zip(leaves, torch.autograd.grad(loss_of(out, lse), leaves.values()), strict=True)),
    )


def tolerances(given):
    """Of results and of gradients. Parts of a sum are rounded to 16 bits, and so is the sum; rows have the same bits
    where that is asked for."""
    if given["q"].dtype == torch.bfloat16:
        return {"rtol": 2**-8, "atol": 2**-8}, {"rtol": 2**-6, "atol": 2**-6}
    exact = {"rtol": 0, "atol": 0} if given.get("row_invariant") else {"rtol": 1e-5, "atol": 1e-5}
    return exact, {"rtol": 1e-4, "atol": 1e-5}


def rows_of(cp, given):
    """Where this rank's rows are in the whole."""
    return cp.shard(torch.arange(given["q"].shape[-3]), 0, cu_seqlens=lengths(given))


def compare(cp, given, whole, mine):
    rows = rows_of(cp, given)
    of_results, of_gradients = tolerances(given)
    torch.testing.assert_close(mine[0], whole[0].index_select(-3, rows), **of_results)
    torch.testing.assert_close(mine[1], whole[1].index_select(-1, rows), **of_results)
    for name, gradient in mine[2].items():
        wanted = whole[2][name]
        if name in ROW_AXES:
            wanted = wanted.index_select(ROW_AXES[name], rows)
        else:
            distributed.all_reduce(gradient)
        torch.testing.assert_close(gradient, wanted, **of_gradients)


def check_cases(world):
    made = {
        (layout, scheme): strobe.torch.ContextParallel(layout=layout, scheme=scheme)
        for layout, scheme in itertools.product(LAYOUTS, SCHEMES)
    }
    for name, given in CASES.items():
        whole = alone(given)
        for (layout, scheme), cp in made.items():
            try:
                mine = shared(cp, given)
            except NotImplementedError as error:
                assert "give scheme=" in str(error), error
                continue
            try:
                compare(cp, given, whole, mine)
            except AssertionError as error:
                raise AssertionError(f"{name}, {layout}, {scheme}, {world} ranks") from error


CHECKS = (check_cases,)


def process(rank, world, folder, check):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # memory that is not written holds NaN
    store = f"file://{folder}/{check.__name__}-{world}"
    timeout = datetime.timedelta(seconds=120)
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timeout)
    check(world)
    distributed.barrier()
    distributed.destroy_process_group()


def main():
    gather._HIDDEN_BYTES = 0  # several groups of heads, as larger calls have them
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        for world, check in itertools.product(map(int, sys.argv[1:] or (2, 3, 4)), CHECKS):
            ranks = [fork.Process(target=process, args=(rank, world, folder, check)) for rank in range(world)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            assert all(rank.exitcode == 0 for rank in ranks), (check.__name__, world)
    sys.stdout.write("as one process\n")


if __name__ == "__main__":
    main()
