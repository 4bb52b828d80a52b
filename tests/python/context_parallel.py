# SPDX-License-Identifier: Apache-2.0
"""Attention of sequences that gloo processes share, by the CPU engine; test_torch_context_parallel.py starts them.

Every case runs on 2, 3 and 4 ranks, or on as many as the arguments say (8 in scripts/soak.sh), and every rank compares
its rows with what it computes alone.
"""

import contextlib
import datetime
import functools
import io
import itertools
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import strobe.torch
import torch
import torch._dynamo  # once, before the ranks are forked
from context_parallel_cases import (
    CASES,
    DOCUMENTS,
    HEAD_DIM,
    HEADS,
    REFUSED,
    ROW_AXES,
    SEQLEN,
    SINK,
    alone,
    draw,
    has_rows,
    rows_of,
    shared,
)
from strobe.torch.context_parallel import groups, key_gradients
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "many-devices.md"
LAYOUTS = ("zigzag", "contiguous", "documents")
SCHEMES = ("gather", "all_to_all", "ring")


def tolerances(given):
    """Of results and of gradients. Parts of a sum are rounded to 16 bits, and so is the sum; rows have the same bits
    where that is asked for."""
    if given["q"].dtype == torch.bfloat16:
        return {"rtol": 2**-8, "atol": 2**-8}, {"rtol": 2**-6, "atol": 2**-6}
    exact = {"rtol": 0, "atol": 0} if given.get("row_invariant") else {"rtol": 1e-5, "atol": 1e-5}
    return exact, {"rtol": 1e-4, "atol": 1e-5}


def compare(cp, given, whole, mine):
    rows = rows_of(cp, given)
    of_results, of_gradients = tolerances(given)
    torch.testing.assert_close(mine[0], whole[0].index_select(-3, rows), **of_results)
    torch.testing.assert_close(mine[1], whole[1].index_select(-1, rows), **of_results)
    torch.testing.assert_close(mine[2], whole[2], **of_results)
    for name, gradient in mine[3].items():
        wanted = whole[3][name]
        if has_rows(name, wanted):
            wanted = wanted.index_select(ROW_AXES[name], rows)
        else:
            distributed.all_reduce(gradient)
        torch.testing.assert_close(gradient, wanted, **of_gradients)


def members(world):
    """By name: all layouts with all schemes, and two levels on four ranks or eight."""
    made = {
        f"{layout}, {scheme}": functools.partial(strobe.torch.ContextParallel, layout=layout, scheme=scheme)
        for layout, scheme in itertools.product(LAYOUTS, SCHEMES)
    }
    if world % 4 == 0:
        mesh = init_device_mesh("cpu", (world // 2, 2))
        groups = (mesh.get_group(0), mesh.get_group(1))
        for layout, scheme in zip(LAYOUTS, SCHEMES, strict=True):
            name = f"two levels, {layout}, {scheme}"
            made[name] = functools.partial(strobe.torch.ContextParallel, groups, layout=layout, scheme=scheme)
    return {name: make() for name, make in made.items()}


def chosen(made, world, case):
    """Of more than two ranks, those of a case in which each scheme has one layout, in turns."""
    names = list(made)
    if world == 2:
        return names
    turn = [names[3 * ((case + scheme) % 3) + scheme] for scheme in range(3)]
    return turn + names[9:]


def check_cases(world):
    made = members(world)
    for number, (name, given) in enumerate(CASES.items()):
        whole = alone(given)
        key_gradients.FEW_ROWS = 512 * (number % 2)  # as of many runs of rows, else as of few
        for how in chosen(made, world, number):
            try:
                mine = shared(made[how], given)
            except NotImplementedError as error:
                refused = REFUSED.get(name, ()) + (("all_to_all",) if given["q"].shape[-2] < world else ())
                assert ": give " in str(error) and any(word in how for word in refused), (how, error)
                continue
            try:
                compare(made[how], given, whole, mine)
            except AssertionError as error:
                raise AssertionError(f"{name}, {how}, {world} ranks") from error


def check_compilers_and_checkpoints(world):
    """A layer around attention: compiled, and computed again in the backward."""
    cp = strobe.torch.ContextParallel()
    x = cp.shard(draw(2, SEQLEN, HEADS * HEAD_DIM))
    weight = draw(3 * HEADS * HEAD_DIM, HEADS * HEAD_DIM, seed=1) / 8

    def layer(x, weight):
        q, k, v = torch.nn.functional.linear(x, weight).unflatten(-1, (3, HEADS, HEAD_DIM)).unbind(2)
        return cp.attention(q, k, v, causal=True).flatten(2).sin()

    def computed(function):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        out = function(*leaves)
        out.square().sum().backward()
        return [out, *(leaf.grad for leaf in leaves)]

    wanted = computed(layer)
    ways = [functools.partial(checkpoint, layer, use_reentrant=reentrant) for reentrant in (False, True)]
    ways.append(torch.compile(layer, backend="aot_eager"))
    for way in ways:
        torch.testing.assert_close(computed(way), wanted, rtol=1e-6, atol=1e-6)
    check_whole_graphs()


def check_whole_graphs():
    """Of one group, by gather and ring, no graph breaks, with options and their gradients, and checkpoints in it."""
    for scheme in ("gather", "ring"):
        parallel = strobe.torch.ContextParallel(scheme=scheme)
        q, k, v = (parallel.shard(draw(2, SEQLEN, heads, HEAD_DIM, seed=i)) for i, heads in enumerate((HEADS, 2, 2)))
        bias = parallel.shard(draw(1, HEADS, SEQLEN, SEQLEN, seed=6), 2)
        parallel.set_sequences(SEQLEN)

        def function(q, k, v, bias, sink, parallel=parallel):
            out, lse = parallel.attention(
                q * 2, k, v, causal="top_left", window=(30, 0), softcap=3.0, bias=bias, sink=sink, return_lse=True
            )
            return out.sin().sum() + lse.square().sum()

        def with_checkpoint(*tensors, function=function):
            return checkpoint(function, *tensors, use_reentrant=False)

        def gradients(function, q=q, k=k, v=v, bias=bias):
            leaves = [x.clone().requires_grad_() for x in (q, k, v, bias, SINK)]
            return torch.autograd.grad(function(*leaves), leaves)

        wanted = gradients(function)
        for way in (function, with_checkpoint):
            mine = gradients(torch.compile(way, backend="aot_eager", fullgraph=True))
            torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)


def check_arguments(world):
    cp = strobe.torch.ContextParallel()
    rank = cp.rank
    with pytest.raises(ValueError, match="no sequences are known"):
        cp.positions()
    x = draw(2, SEQLEN, HEADS, HEAD_DIM)
    part = cp.shard(x)
    torch.testing.assert_close(cp.unshard(part), x, rtol=0, atol=0)
    torch.testing.assert_close(cp.unshard(part.transpose(0, 1), 0), x.transpose(0, 1), rtol=0, atol=0)
    assert cp.positions().tolist() == cp.shard(torch.arange(SEQLEN), 0).tolist()
    assert "imbalance" in cp.explain()
    with pytest.raises(ValueError, match=f"bias has shape .1, 1, 70, 70.: .* which end with {part.shape[1]} and 70"):
        cp.attention(part, part, part, bias=draw(1, 1, SEQLEN, SEQLEN))
    packed = cp.shard(x[0], 0, cu_seqlens=torch.tensor(DOCUMENTS))
    torch.testing.assert_close(cp.unshard(packed, 0), x[0], rtol=0, atol=0)
    places = torch.cat([torch.arange(b - a) for a, b in itertools.pairwise(DOCUMENTS)])
    assert cp.positions().tolist() == cp.shard(places, 0, cu_seqlens=DOCUMENTS).tolist()
    for message, call in {
        "must be .rows, heads, head_dim., as cu_seqlens was given": lambda: cp.attention(part, part, part),
        "q has 1 rows, but rank": lambda: cp.attention(packed[:1], packed, packed),
        "q has 4 heads, k 3": lambda: cp.attention(packed, packed[:, :3], packed),
        "cu_seqlens ends with 69, but there are 70 rows": lambda: cp.shard(x, cu_seqlens=[0, 69]),
        "cu_seqlens is .1, 70.": lambda: cp.shard(x, cu_seqlens=[1, 70]),
        "it must be one of zigzag, contiguous, documents": lambda: strobe.torch.ContextParallel(layout="zig"),
        "it must be one of auto, gather": lambda: strobe.torch.ContextParallel(scheme="broadcast"),
        "the ranks' layouts and schemes differ": lambda: strobe.torch.ContextParallel(layout=LAYOUTS[rank % 2]),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="cu_seqlens_q is given: the sequences are those of shard's cu_seqlens"):
        cp.attention(packed, packed, packed, cu_seqlens_q=torch.tensor(DOCUMENTS))
    with pytest.raises(TypeError, match="softmax_scale is no option"):
        cp.attention(packed, packed, packed, softmax_scale=1.0)
    cp.attention(packed, packed, packed, causal=True)
    assert "scheme " in cp.explain() and " MiB" in cp.explain()


def check_seeds(world):
    """A call without a seed draws one from PyTorch's generator."""
    for scheme in SCHEMES:
        cp = strobe.torch.ContextParallel(scheme=scheme)
        x = cp.shard(draw(2, SEQLEN, HEADS, HEAD_DIM))
        torch.manual_seed(7)
        drawn, again = (cp.attention(x, x, x, dropout=0.5) for _ in range(2))
        torch.manual_seed(7)
        state = torch.randint(2**63 - 1, (2,)).view(torch.int32)
        assert torch.equal(cp.attention(x, x, x, dropout=0.5, random_state=state), drawn)
        assert not torch.equal(drawn, again)


def check_page(world):
    """The example of docs/many-devices.md."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    def project(x, positions):
        assert x.shape == (2, len(positions))
        return [draw(2, len(positions), HEADS, HEAD_DIM, seed=seed) for seed in range(3)]

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(example, {"group": None, "tokens": draw(2, SEQLEN), "project": project})
    assert "layout zigzag" in printed.getvalue() and f"on {world} ranks" in printed.getvalue()


def check_lost_ranks(world):
    """Where a rank is killed (of 3), or never calls (of 2), the others have an error within the group's time-out."""
    cp = strobe.torch.ContextParallel(scheme="gather")
    part = cp.shard(draw(2, SEQLEN, HEADS, HEAD_DIM))
    cp.attention(part, part, part)
    if cp.rank == 0 and world == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if cp.rank == 0:
        time.sleep(3600)
    with pytest.raises(RuntimeError):
        cp.attention(part, part, part)


def run_ranks(world, folder, check, seconds=120):
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=process, args=(rank, world, folder, check, seconds)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    return ranks


def process(rank, world, folder, check, seconds):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # memory that is not written holds NaN
    store, timeout = f"file://{folder}/{check.__name__}-{world}", datetime.timedelta(seconds=seconds)
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timeout)
    check(world)
    if check is check_lost_ranks:
        os._exit(0)
    distributed.barrier()
    distributed.destroy_process_group()


def main():
    groups.HIDDEN_BYTES.update(forward=0, backward=0)  # two groups of heads, as larger calls have them
    with tempfile.TemporaryDirectory() as folder:
        for world in map(int, sys.argv[1:] or (2, 3, 4)):
            for check in (check_cases, check_arguments, check_seeds, check_compilers_and_checkpoints, check_page):
                ranks = run_ranks(world, folder, check)
                for rank in ranks:
                    rank.join()
                assert all(rank.exitcode == 0 for rank in ranks), (check.__name__, world)
        for world in (2, 3):
            lost, *others = run_ranks(world, folder, check_lost_ranks, seconds=3)
            for rank in others:
                rank.join(60)
            lost.kill()
            assert all(rank.exitcode == 0 for rank in others), "a rank hangs, or has no error"
    sys.stdout.write("as one process\n")


if __name__ == "__main__":
    main()
