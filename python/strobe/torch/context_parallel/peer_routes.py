# SPDX-License-Identifier: Apache-2.0
"""Where rows lie that ranks copy into each other's memory. Numbers alone, as the plans of keys that they follow."""

from dataclasses import dataclass
from functools import lru_cache

from strobe.torch.context_parallel.keys import KeyPlan, Sight, key_plan
from strobe.torch.context_parallel.layout import Layout, Rows, one_behind_another

Moves = tuple[tuple[Rows, Rows], ...]
"""Runs of rows, and where they go: of as many rows each."""


@dataclass(frozen=True, eq=False)
class PeerRoutes:
    """Of one rank. Moves by the rank of the other side; none where that is the rank itself."""

    takes: tuple[Moves, ...]
    """Of each rank's buffer of keys, into this rank's."""
    gives: tuple[tuple[Moves, ...], ...]
    """By call: of the call's keys, whose gradients go to each rank's arrivals."""
    arrivals: tuple[tuple[Rows, ...], ...]
    """By rank and its call: where the gradients of this rank's keys arrive from there, all runs one behind another."""
    most_keys: int
    """Rows of the largest buffer of keys of all ranks."""
    most_arrivals: int


@lru_cache(maxsize=256)
def peer_routes(layout: Layout, rank: int, sight: Sight) -> PeerRoutes:
    plans = [key_plan(layout, other, sight) for other in range(layout.world)]
    arrivals = [_arrivals(plan, other) for other, plan in enumerate(plans)]
    return PeerRoutes(
        tuple(_taken(plans, rank, other) for other in range(layout.world)),
        tuple(
            tuple(_given(plans, arrivals[other], rank, other, call) for other in range(layout.world))
            for call in range(len(plans[rank].calls))
        ),
        arrivals[rank],
        max(plan.buffer_rows for plan in plans),
        max(run[1] for of_rank in arrivals for calls in of_rank for run in (*calls, (0, 0))),
    )


def _taken(plans: list[KeyPlan], rank: int, other: int) -> Moves:
    return tuple(zip(plans[other].sends[rank], plans[rank].receives[other], strict=True))


def _arrivals(plan: KeyPlan, rank: int) -> tuple[tuple[Rows, ...], ...]:
    """Of the rank that has this plan."""
    end, arrivals = 0, []
    for other, calls in enumerate(plan.collects):
        places = []
        for rows in calls:
            start, end = end, end + (0 if other == rank else sum(b - a for a, b in rows))
            places.append((start, end))
        arrivals.append(tuple(places))
    return tuple(arrivals)


def _given(plans: list[KeyPlan], arrivals: tuple[tuple[Rows, ...], ...], rank: int, other: int, call: int) -> Moves:
    if other == rank:
        return ()
    first = arrivals[rank][call][0]
    places = one_behind_another(plans[other].collects[rank][call])
    moves = zip(plans[rank].returns[call][other], places, strict=True)
    return tuple((run, (first + start, first + stop)) for run, (start, stop) in moves)
