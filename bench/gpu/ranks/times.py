# SPDX-License-Identifier: Apache-2.0
"""How long calls take that ranks share, of what would be ideal: one GPU's time for its part."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import strobe
import strobe.torch
import torch
from ranks.calls import Mask, Sizes, documents, draw, one_gpu, passes
from ranks.group import IN_A_GRAPH, IN_A_ROW, Ranks
from strobe.torch.context_parallel.layout import Layout, layout_of
from strobe.torch.context_parallel.model import PASSES, link_of, one_device, pass_times, traffic, work_imbalance

LONGEST_SECONDS = 3.0
"""Of one GPU's forward and backward: of longer calls a shorter one is measured, and its time scaled by their keys."""


class Times:
    def __init__(self, ranks: Ranks, sizes: Sizes) -> None:
        self.ranks, self.sizes = ranks, sizes
        self._alone: dict[tuple[Mask, int], dict[str, Any]] = {}

    def lengths(self, mask: Mask, rows: int) -> tuple[tuple[int, ...], list[int] | None]:
        """Of the sequences, and where packed ones begin and end."""
        if not mask.packed:
            return (rows,), None
        ends = documents(rows)
        return tuple(b - a for a, b in itertools.pairwise(ends)), ends

    def seconds(self, mask: Mask, rows: int) -> float:
        """About how long one GPU takes for both passes; a CPU for TINY."""
        lengths, _ = self.lengths(mask, rows)
        estimate = sum(one_device(replace(self.sizes.call, sight=mask.sight(self.sizes)), lengths).values())
        return estimate if self.ranks.on_gpus else 0.05

    def alone(self, mask: Mask, rows: int) -> dict[str, Any]:
        """Of the whole call by one GPU."""
        if (mask, rows) not in self._alone:
            measured = rows
            while self.seconds(mask, measured) > LONGEST_SECONDS:
                measured //= 2
            _, ends = self.lengths(mask, measured)
            tensors = draw(self.sizes, measured, self.ranks.device, mask.packed)
            options = one_gpu(ends, mask.options(self.sizes), self.ranks.device)
            calls = passes(strobe.torch.attention, tensors, options)
            times: dict[str, Any] = {name: self.ranks.milliseconds(call) for name, call in calls.items()}
            if measured < rows:
                factor = self._keys(mask, rows) / self._keys(mask, measured)
                times = {name: {way: x * factor for way, x in of.items()} for name, of in times.items()}
                times["scaled from rows"] = measured
            self._alone[mask, rows] = times
        return self._alone[mask, rows]

    def _keys(self, mask: Mask, rows: int) -> int:
        lengths, _ = self.lengths(mask, rows)
        whole, sight = layout_of("contiguous", 1, lengths), mask.sight(self.sizes)
        return sum(sight.work(span, lengths[span.sequence]) for span in whole.spans(0))

    def shared(self, mask: Mask, tokens: int, scheme: str, layout: str) -> dict[str, Any]:
        """A cell: of as many tokens on each GPU, by one scheme."""
        rows = tokens * self.ranks.world
        alone = self.alone(mask, rows)
        lengths, ends = self.lengths(mask, rows)
        cp = strobe.torch.ContextParallel(layout=layout, scheme=scheme)
        cp.set_sequences(rows, cu_seqlens=ends)
        parts = draw(self.sizes, len(cp.positions()), self.ranks.device, mask.packed)
        calls = passes(cp.attention, parts, mask.options(self.sizes))
        times = {name: self.ranks.milliseconds(call) for name, call in calls.items()}
        cell = self.cell(mask, tokens, scheme, layout, times)
        shares = layout_of(layout, self.ranks.world, lengths)  # a rank has these rows
        return (
            cell
            | {"one GPU, ms": alone, "model": self.predicted(mask, shares, scheme)}
            | self.moved(mask, shares, scheme)
        )

    def cell(self, mask: Mask, tokens: int, scheme: str, layout: str, times: dict[str, Any]) -> dict[str, Any]:
        """As JSON: milliseconds, and shares of ideal."""
        alone = self.alone(mask, tokens * self.ranks.world)
        shares = {
            name: {way: round(alone[name][way] / self.ranks.world / x, 4) for way, x in of.items()}
            for name, of in times.items()
        }
        what = {"mask": mask.name, "tokens": tokens, "scheme": scheme, "layout": layout}
        return what | {"ms": times, "share": shares}

    def predicted(self, mask: Mask, layout: Layout, scheme: str) -> dict[str, float]:
        """Shares of ideal by the model that scheme="auto" asks."""
        size, link = replace(self.sizes.call, sight=mask.sight(self.sizes)), link_of(self.ranks.world)
        seconds, one = pass_times(layout, size, link).get(scheme), one_device(size, layout.lengths)
        if seconds is None:
            return {}
        shares = {name: one[name] / self.ranks.world / seconds[name] for name in PASSES}
        shares["both"] = sum(one.values()) / self.ranks.world / sum(seconds.values())
        return {name: round(x, 4) for name, x in shares.items()}

    def moved(self, mask: Mask, layout: Layout, scheme: str) -> dict[str, Any]:
        """What the rank that receives most receives, and how evenly work is shared."""
        size, link = replace(self.sizes.call, sight=mask.sight(self.sizes)), link_of(self.ranks.world)
        ranks = [traffic(scheme, layout, rank, size, link) for rank in range(self.ranks.world)]
        received = {name: max(getattr(x, name) for x in ranks) for name in PASSES}
        return {"bytes received": received, "imbalance": round(work_imbalance(scheme, layout, size), 4)}

    def decode(self, keys: int, captured: bool = False) -> dict[str, Any]:
        """A query over a cache, of which each rank has its share of the keys; `captured` in CUDA graphs."""
        world = self.ranks.world
        lead = {"device": self.ranks.device, "dtype": self.sizes.dtype}
        q = torch.randn(1, 1, self.sizes.heads, self.sizes.head_dim, **lead)
        k, v = (torch.randn(1, keys, self.sizes.heads_kv, self.sizes.head_dim, **lead) for _ in range(2))
        lengths = torch.tensor([keys - 3], dtype=torch.int32, device=self.ranks.device)
        cp = strobe.torch.ContextParallel()
        own = [x[:, : -(-keys // world)].contiguous() for x in (k, v)]
        calls = {
            "one GPU": lambda: strobe.attention(q, k, v, seqused_k=lengths, return_lse=True),
            "shared": lambda: cp.decode(q, *own, lengths),
        }
        if captured:
            times = {name: {IN_A_GRAPH: self._replayed(call)} for name, call in calls.items()}
        else:
            times = {name: self.ranks.milliseconds(call) for name, call in calls.items()}
        faster = {way: round(times["one GPU"][way] / x, 3) for way, x in times["shared"].items()}
        return {"keys": keys, "ms": times, "times as fast": faster}

    def _replayed(self, call: Callable[[], Any]) -> float:
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the group's threads ask for events
            call()
        return self.ranks.milliseconds(graph.replay)[IN_A_ROW]
