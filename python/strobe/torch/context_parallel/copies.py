# SPDX-License-Identifier: Apache-2.0
"""How gather moves keys and gradients where ranks reach each other's memory: peer_memory.py says why and when."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.torch.context_parallel import exchange
from strobe.torch.context_parallel.keys import KeyPlan
from strobe.torch.context_parallel.launches import Launch, keys_of
from strobe.torch.context_parallel.parts import Heads
from strobe.torch.context_parallel.peer_memory import Pairs, PeerMemory, peer_memory
from strobe.torch.context_parallel.peer_routes import PeerRoutes, peer_routes
from strobe.torch.context_parallel.shared import SharedCall


@dataclass(frozen=True)
class _Views:
    """Of a group of heads, in one slot of the keys' memory."""

    heads: Heads
    buffer: Tensor
    """Keys and values, joined."""
    join: exchange.Joining
    pulled: Pairs
    keys: dict[tuple[Launch, Heads], tuple[Tensor, Tensor]]


def copies_of(call: SharedCall, plan: KeyPlan, k: Tensor, v: Tensor) -> "Copies | None":
    """None where messages must move this call's rows. All ranks find the same."""
    memory = peer_memory(call.group, k.device) if k.is_cuda else None
    if memory is None:
        return None
    if "routes" not in call.memory:
        call.memory["routes"] = peer_routes(call.layout, call.rank, call.options.sight)
    routes: PeerRoutes = call.memory["routes"]
    row_bytes = (k.shape[-1] + v.shape[-1]) * k.shape[-2] * (k.shape[0] if call.batched else 1) * k.element_size()
    if not memory.reserve(routes.most_keys * row_bytes, routes.most_arrivals * row_bytes):
        return None
    return Copies(call, plan, memory, routes, k, v)


class Copies:
    """Of one pass of a call."""

    is_copied = True

    def __init__(
        self, call: SharedCall, plan: KeyPlan, memory: PeerMemory, routes: PeerRoutes, k: Tensor, v: Tensor
    ) -> None:
        self._call, self._plan, self._memory, self._routes, self._k, self._v = call, plan, memory, routes, k, v
        self._columns = k.shape[-1] + v.shape[-1]
        self._batch = k.shape[0] if call.batched else 1
        self._sent = False
        self._events: list[torch.cuda.Event | None] = []

    def start(self, groups: list[Heads]) -> None:
        """Puts this rank's keys and values where others read them."""
        memory = self._memory
        memory.begin()
        k, v = self._k, self._v
        key = ("views", memory.number, memory.slot, k.shape, v.shape, k.stride(), v.stride(), k.dtype, *groups)
        if key not in self._call.memory:
            self._call.memory[key] = [self._make_views(heads) for heads in groups]
        self._views: list[_Views] = self._call.memory[key]
        for views in self._views:
            views.join.run(k, v)
        memory.barrier()
        if len(groups) > 1:
            memory.order()

    def _fetch(self, number: int) -> None:
        """Begins to copy the keys and values of the groups up to this one, in their order. If it is the only one,
        nothing of the current stream has what it does meanwhile, so that it copies itself."""
        for views in self._views[len(self._events) : number + 1]:
            if len(self._views) > 1:
                self._events.append(self._memory.copy(views.pulled))
            else:
                self._memory.copy_here(views.pulled)
                self._events.append(None)

    def fetched(self, number: int, stream: torch.cuda.Stream | None = None) -> Tensor:
        """The keys and values of a group, joined, which work that follows on the stream sees: by default the current
        one. They are asked for here, those of later groups behind launches that need none of them."""
        self._fetch(number)
        event = self._events[number]
        if event is not None:
            (stream or self._memory.current).wait_event(event)
        elif stream is not None:
            self._memory.order(stream)
        return self._views[number].buffer

    def keys(self, number: int, launch: Launch, heads: Heads) -> tuple[Tensor, Tensor]:
        """Those of a group as a launch of some of its heads takes them."""
        views = self._views[number]
        if (launch, heads) not in views.keys:
            views.keys[launch, heads] = keys_of(launch, views.buffer, self._k, self._v, heads.within(views.heads))
        return views.keys[launch, heads]

    def _make_views(self, heads: Heads) -> _Views:
        buffer = self._keys_of(self._memory.rank, heads)
        pulled = [
            (buffer[slice(*to)], source[slice(*of)])
            for other in self._memory.others()
            for source in (self._keys_of(other, heads),)
            for of, to in self._routes.takes[other]
        ]
        places = self._call.memory.setdefault("own rows", exchange.Places(self._plan.own, self._k.device))
        join = exchange.Joining(buffer, self._k, self._v, heads.of_keys, self._call.batched, places)
        return _Views(heads, buffer, join, pulled, {})

    def _shape(self, rows: int, heads: Heads) -> tuple[int, ...]:
        batch = (self._batch,) if self._call.batched else ()
        return (rows, *batch, heads.number * self._columns)

    def _keys_of(self, rank: int, heads: Heads) -> Tensor:
        rows = self._routes.most_keys
        offset = rows * self._batch * heads.first * self._columns
        return self._memory.keys(rank, offset, self._shape(rows, heads), self._k.dtype)

    def give(self, computed: list[Tensor], heads: Heads) -> None:
        """Starts to send what this rank's calls have for the keys of others."""
        pairs = [
            (arrivals[slice(*to)], joined[slice(*of)])
            for other in self._memory.others()
            for arrivals in (self._arrivals(other, heads),)
            for joined, moves in zip(computed, self._routes.gives, strict=True)
            for of, to in moves[other]
        ]
        self._memory.order()
        self._memory.copy(pairs)

    def _arrivals(self, rank: int, heads: Heads) -> Tensor:
        key = ("arrivals", self._memory.number, rank, heads, self._k.shape, self._v.shape, self._k.dtype)
        if key not in self._call.memory:
            rows = self._routes.most_arrivals
            offset = rows * self._batch * heads.first * self._columns
            shape = self._shape(rows, heads)
            self._call.memory[key] = self._memory.gradients(rank, offset, shape, self._k.dtype)
        return self._call.memory[key]

    def arrivals(self, heads: Heads, other: int, call: int) -> Tensor:
        """Of another rank's call: there once wait() has been called."""
        return self._arrivals(self._call.rank, heads)[slice(*self._routes.arrivals[other][call])]

    def wait(self) -> None:
        """Work that follows on the current stream sees the gradients that all ranks have sent."""
        if not self._sent:
            self._memory.join()
            self._memory.barrier()
            self._sent = True
