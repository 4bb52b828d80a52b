# SPDX-License-Identifier: Apache-2.0
"""Keys and gradients that move by copies between ranks' memory, which are threads here that share one process's."""

from threading import Barrier, Thread
from types import SimpleNamespace

import pytest
import strobe.torch
import torch
from strobe.torch.context_parallel import exchange, gather
from strobe.torch.context_parallel.copies import Copies
from strobe.torch.context_parallel.keys import key_plan
from strobe.torch.context_parallel.layout import KINDS, layout_of
from strobe.torch.context_parallel.parts import Heads, call_options
from strobe.torch.context_parallel.peer_routes import peer_routes
from strobe.torch.context_parallel.shared import SharedCall

HEADS, HEADS_KV, HEAD_DIM, HEAD_DIM_V = 4, 2, 16, 8
LENGTHS = (150, 1, 37, 0, 70)
SECONDS = 60


class Memory:
    """What Copies takes of PeerMemory: all ranks' keys in two slots, and gradients, in the memory of one process."""

    number = 1

    def __init__(self, rank, world, everyone, barrier):
        self.rank, self.world, self._everyone, self._barrier = rank, world, everyone, barrier
        self.slot = 0
        self.current = SimpleNamespace(wait_event=lambda event: None)

    def begin(self):
        self.slot = 1 - self.slot

    def barrier(self):
        self._barrier.wait(SECONDS)

    def order(self):
        pass

    join = order

    def copy_here(self, pairs):
        for to, of in pairs:
            to.copy_(of)

    copy = copy_here

    def _rows(self, rank, part, offset, shape):
        elements = self._everyone[rank][part]
        return elements[offset : offset + torch.Size(shape).numel()].view(shape)

    def keys(self, rank, offset, shape, dtype):
        return self._rows(rank, self.slot, offset, shape)

    def gradients(self, rank, offset, shape, dtype):
        return self._rows(rank, 2, offset, shape)

    def others(self):
        return [(self.rank + step) % self.world for step in range(1, self.world)]


class Alone:
    """One lane."""

    def stream(self, lane):
        return None

    def mark(self, lane):
        return None

    def wait(self, lane, event):
        pass

    def join(self):
        pass


class Context:
    """What a torch.autograd.Function keeps for its backward."""

    needs_input_grad = (False, False, True, True, True, False, False)

    def set_materialize_grads(self, value):
        pass

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors


def in_threads(world, compute):
    results, errors = [None] * world, []

    def run(rank):
        try:
            with torch.no_grad():
                results[rank] = compute(rank)
        except Exception as error:  # raised again below
            errors.append(error)

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    if errors:
        raise errors[0]
    return results


def draw(packed):
    rows = sum(LENGTHS)
    shapes = ((HEADS, HEAD_DIM), (HEADS_KV, HEAD_DIM), (HEADS_KV, HEAD_DIM_V), (HEADS, HEAD_DIM_V))
    return [torch.randn(*(() if packed else (2,)), rows, *shape) for shape in shapes]


def alone(tensors, packed, options):
    *leaves, d_o = [x.clone().requires_grad_() for x in tensors]
    if packed:
        ends = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], dtype=torch.int32)
        options = options | {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        options |= {"max_seqlen_q": max(LENGTHS), "max_seqlen_k": max(LENGTHS)}
    out = strobe.torch.attention(*leaves, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, d_o)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": (20, 0)}], ids=str)
def test_ranks_are_one_process(monkeypatch, kind, world, packed, groups, options):
    """Twice in a row, so that calls take both slots and remembered views."""
    torch.manual_seed(0)
    layout = layout_of(kind, world, LENGTHS if packed else (sum(LENGTHS),))
    whole = call_options(options, layout, not packed)
    everyone = [
        torch.full((3, 2 * sum(LENGTHS) * HEADS_KV * (HEAD_DIM + HEAD_DIM_V) * 4), torch.nan) for _ in range(world)
    ]
    barrier = Barrier(world)
    calls = [SharedCall(None, rank, layout, whole) for rank in range(world)]
    memories = [Memory(rank, world, everyone, barrier) for rank in range(world)]

    def copies_of(call, plan, k, v):
        return Copies(call, plan, memories[call.rank], peer_routes(layout, call.rank, whole.sight), k, v)

    monkeypatch.setattr(gather, "copies_of", copies_of)
    monkeypatch.setattr(gather, "group_ends", lambda heads_kv, *_: [heads_kv] if groups == 1 else [1, heads_kv])
    monkeypatch.setattr(gather, "Lanes", lambda *_: Alone())
    rows = [torch.cat([torch.arange(0), *(torch.arange(*run) for run in layout.places(rank))]) for rank in range(world)]
    for _ in range(2):
        tensors = draw(packed)
        parts = [[x.index_select(int(not packed), own) for x in tensors] for own in rows]

        def of_rank(rank, parts=parts):
            ctx, (*qkv, d_o) = Context(), parts[rank]
            out, _ = gather.GatherAttention.forward(ctx, calls[rank], None, *qkv, None, None)
            return [out, *gather.GatherAttention.backward(ctx, d_o, None)[2:5]]

        wanted = alone(tensors, packed, options)
        for own, mine in zip(rows, in_threads(world, of_rank), strict=True):
            for x, all_rows in zip(mine, wanted, strict=True):
                torch.testing.assert_close(x, all_rows.index_select(int(not packed), own), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    "runs", [[((0, 3), (5, 8)), ((3, 7), (0, 4))], [((i, i + 1), (2 * i, 2 * i + 1)) for i in range(7)]]
)
@pytest.mark.parametrize("heads", [Heads(0, 4, 1), Heads(1, 3, 1)])
@pytest.mark.parametrize("dense", [False, True])
def test_keys_beside_values(batched, runs, heads, dense):
    """Remembered views join what they were not made of, whether or not heads lie side by side."""
    lead = (2, 7) if batched else (7,)
    columns = heads.number * (HEAD_DIM + HEAD_DIM_V)
    buffers = [torch.full((14, *lead[:-1], columns), torch.nan) for _ in range(2)]
    places = exchange.Places(runs, torch.device("cpu"))
    joining = None
    for _ in range(2):
        k, v = (
            torch.randn(*lead, 4, HEAD_DIM),
            torch.randn(*lead, 4, HEAD_DIM_V + (0 if dense else 8))[..., :HEAD_DIM_V],
        )
        joining = joining or exchange.Joining(buffers[0], k, v, heads.of_keys, batched, places)
        joining.run(k, v)
        exchange.join_into(buffers[1], k[..., heads.of_keys, :], v[..., heads.of_keys, :], batched, runs)
        torch.testing.assert_close(*buffers, rtol=0, atol=0, equal_nan=True)


def test_a_call_sees_keys_of_its_rank_alone():
    """The first slice of a zigzag, which need not wait for others, and nothing else."""
    layout = layout_of("zigzag", 2, (64,))
    options = call_options({"causal": True}, layout, batched=True)
    own = [
        [plan.is_own(call) for call in plan.calls]
        for plan in (key_plan(layout, rank, options.sight) for rank in (0, 1))
    ]
    assert own == [[True, False], [False]]
