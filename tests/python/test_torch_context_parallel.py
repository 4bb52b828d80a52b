# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: what each rank has and needs, as numbers, and what processes compute together."""

import json
import random
import sys
from itertools import chain
from pathlib import Path

import pytest
from children import run
from strobe.torch.context_parallel.all_to_all import head_shares
from strobe.torch.context_parallel.keys import Sight, key_plan
from strobe.torch.context_parallel.layout import (
    KINDS,
    Span,
    causal_work,
    common,
    imbalance,
    layout_of,
    places_in,
    united,
)
from strobe.torch.context_parallel.peer_routes import peer_routes

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("context_parallel.py")


def rows_of(runs):
    return [row for run in runs for row in range(*run)]


def lengths_of(seed):
    draw = random.Random(seed)
    return tuple(draw.choice((0, 1, 2, draw.randrange(1, 400))) for _ in range(draw.randrange(1, 12)))


def visible(sight, length, p):
    """The keys that a query sees, one by one."""
    for key in range(length):
        if sight.causal and key > p:
            continue
        if (sight.left >= 0 and key < p - sight.left) or (sight.right >= 0 and key > p + sight.right):
            continue
        if sight.chunk and key // sight.chunk != p // sight.chunk:
            continue
        yield key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_of_one_rank(kind, seed):
    lengths, world = lengths_of(seed), 1 + seed % 5
    layout = layout_of(kind, world, lengths)
    rows = [rows_of(layout.places(rank)) for rank in range(world)]
    assert sorted(chain(*rows)) == list(range(sum(lengths)))
    assert [len(x) for x in rows] == [layout.rows(rank) for rank in range(world)]
    for rank in range(world):
        for call in layout.calls[rank]:
            sequences = [span.sequence for span in call]
            assert sequences == sorted(set(sequences)), "a call has one span of a sequence"
            assert all(span.start < span.stop for span in call)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_every_query_meets_its_keys(kind, seed):
    """What ranks send is what others receive, each rank's buffer has all the keys that its calls name, and their
    gradients find the way back."""
    lengths, world = lengths_of(seed), 1 + seed % 5
    draw = random.Random(seed)
    sight = Sight(draw.random() < 0.7, draw.choice((-1, 0, 17)), draw.choice((-1, 0, 5)), draw.choice((0, 0, 32)))
    layout = layout_of(kind, world, lengths)
    plans = [key_plan(layout, rank, sight) for rank in range(world)]
    own = [rows_of(layout.places(rank)) for rank in range(world)]
    begins = [sum(lengths[:i]) for i in range(len(lengths))]
    buffers = []  # of the rows that each rank has, then of all
    for rank, plan in enumerate(plans):
        buffers.append([None] * plan.buffer_rows)
        for rows, places in plan.own:
            buffers[rank][slice(*places)] = own[rank][slice(*rows)]
    for rank, plan in enumerate(plans):
        buffer = list(buffers[rank])
        for other in range(world):
            sent = [buffers[other][place] for place in rows_of(plans[other].sends[rank])]
            for row, place in zip(sent, rows_of(plan.receives[other]), strict=True):
                assert buffer[place] is None
                buffer[place] = row
        assert None not in buffer
        for number, call in enumerate(plan.calls):
            assert [own[rank][row] for row in range(*call.rows)] == [
                begins[span.sequence] + p for span in call.spans for p in range(span.start, span.stop)
            ]
            keys = buffer[slice(*call.buffer)]
            for i, (span, (first, stop)) in enumerate(zip(call.spans, call.keys, strict=True)):
                begin = begins[span.sequence]
                at = call.begins[i]
                assert keys[at : at + stop - first] == list(range(begin + first, begin + stop))
                for p in range(span.start, span.stop):
                    assert set(visible(sight, lengths[span.sequence], p)) <= set(range(first, stop))
            for other in range(world):
                returned = [keys[row] for row in rows_of(plan.returns[number][other])]
                assert returned == [own[other][row] for row in rows_of(plans[other].collects[rank][number])]
            assert sorted(keys[row] for runs in plan.returns[number] for row in rows_of(runs)) == sorted(
                begins[span.sequence] + key
                for span, run in zip(call.spans, call.keys, strict=True)
                for key in range(*run)
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_copies_move_what_messages_move(kind, seed):
    lengths, world = lengths_of(seed), 2 + seed % 4
    layout, sight = layout_of(kind, world, lengths), (Sight(True), Sight(), Sight(True, 30, 0, 0, 8))[seed % 3]
    plans = [key_plan(layout, rank, sight) for rank in range(world)]
    routes = [peer_routes(layout, rank, sight) for rank in range(world)]
    arrivals = [{} for _ in range(world)]
    for rank, plan in enumerate(plans):
        assert plan.buffer_rows <= routes[rank].most_keys
        for other in range(world):
            moves = routes[rank].takes[other]
            assert rows_of(of for of, _ in moves) == rows_of(plans[other].sends[rank])
            assert rows_of(to for _, to in moves) == rows_of(plan.receives[other])
            for call, gives in enumerate(routes[rank].gives):
                of = rows_of(of for of, _ in gives[other])
                to = rows_of(to for _, to in gives[other])
                assert of == (rows_of(plan.returns[call][other]) if other != rank else [])
                assert arrivals[other].keys().isdisjoint(to)
                arrivals[other] |= {row: (rank, call, i) for i, row in enumerate(to)}
    for rank, plan in enumerate(plans):
        assert sorted(arrivals[rank]) == list(range(len(arrivals[rank])))
        assert len(arrivals[rank]) <= routes[rank].most_arrivals
        for other, calls in enumerate(plan.collects):
            for call, rows in enumerate(calls if other != rank else ()):
                found = [arrivals[rank][row] for row in range(*routes[rank].arrivals[other][call])]
                assert found == [(other, call, i) for i in range(len(rows_of(rows)))]


def test_work_is_counted_key_by_key():
    for sight in (
        Sight(),
        Sight(True),
        Sight(True, 5, 0),
        Sight(False, 3, 2),
        Sight(True, -1, -1, 8),
        Sight(False, 4, -1),
    ):
        for span in (Span(0, 0, 1), Span(0, 3, 20), Span(0, 7, 33)):
            wanted = sum(len(list(visible(sight, 33, p))) for p in range(span.start, span.stop))
            assert sight.work(span, 33) == wanted
    assert causal_work(Span(0, 3, 20)) == Sight(True).work(Span(0, 3, 20), 33)


@pytest.mark.parametrize("world", [2, 3, 4, 8, 64])
def test_zigzag_is_balanced(world):
    layout = layout_of("zigzag", world, (100_003,))
    work = [sum(map(causal_work, layout.spans(rank))) for rank in range(world)]
    assert imbalance(work) < 0.01
    contiguous = layout_of("contiguous", world, (100_003,))
    assert imbalance([sum(map(causal_work, contiguous.spans(rank))) for rank in range(world)]) > 0.4


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(10))
def test_documents_are_balanced(world, seed):
    draw = random.Random(seed)
    lengths = tuple(int(draw.lognormvariate(6.5, 1.3)) + 1 for _ in range(draw.choice((3, 20, 200))))
    layout = layout_of("documents", world, lengths)
    rows = [layout.rows(rank) for rank in range(world)]
    work = [sum(map(causal_work, layout.spans(rank))) for rank in range(world)]
    assert imbalance(work) < 0.05, (imbalance(work), lengths)
    assert imbalance(rows) < 0.05


def test_short_documents_stay_whole():
    layout = layout_of("documents", 2, (100,) * 64)
    assert all(span == Span(span.sequence, 0, 100) for rank in range(2) for span in layout.spans(rank))


def test_runs():
    assert united([(5, 8), (0, 2), (2, 3), (7, 9), (4, 4)]) == [(0, 3), (5, 9)]
    assert common([(5, 8), (0, 3)], [(2, 6), (7, 20)]) == [(2, 3), (5, 6), (7, 8)]
    assert places_in([(10, 20), (0, 5)], [(12, 13), (1, 5)]) == [(2, 3), (11, 15)]
    assert imbalance([0, 0]) == 0 and imbalance([3, 1]) == 0.5


@pytest.mark.parametrize(
    ("heads_q", "heads_kv", "world"),
    [(8, 4, 2), (8, 2, 4), (12, 3, 2), (6, 6, 3), (12, 2, 3), (4, 1, 4), (4, 2, 3), (10, 5, 4)],
)
def test_heads_meet_their_key_heads(heads_q, heads_kv, world):
    shares = head_shares(heads_q, heads_kv, world)
    assert sum(shares.of_queries, ()) == tuple(range(heads_q))
    for of_queries, of_keys in zip(shares.of_queries, shares.of_keys, strict=True):
        assert len(of_queries) % len(of_keys) == 0
        group = len(of_queries) // len(of_keys)
        assert [of_keys[i // group] for i in range(len(of_queries))] == [
            head // (heads_q // heads_kv) for head in of_queries
        ]
    if heads_kv % world == 0:
        assert sum(shares.of_keys, ()) == tuple(range(heads_kv)), "no key head is sent twice"


def test_the_plot_is_of_this_model():
    """docs/benchmarks/context_parallel.json is what bench/context_parallel_model.py writes, and that is sound."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from context_parallel_model import computed
    finally:
        sys.path.pop(0)
    rows = computed()["rows"]
    committed = json.loads((ROOT / "docs" / "benchmarks" / "context_parallel.json").read_text(encoding="utf-8"))
    assert committed["rows"] == rows
    shares = {(x["tokens"], x["GPUs"], x["link"], x["scheme"]): x["both"] for x in rows}
    assert all(0 < x < 1 for x in shares.values())
    for (tokens, gpus, link, scheme), share in shares.items():
        if link == "InfiniBand" and scheme != "two_levels":
            assert share <= shares[tokens, gpus, "NVLink", scheme]
        if tokens > 8192:
            assert share > shares[8192, gpus, link, scheme]


def test_processes():
    assert "as one process" in run([sys.executable, PROGRAM]).stdout
