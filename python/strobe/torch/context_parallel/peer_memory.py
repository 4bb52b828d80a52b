# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs of one host that all ranks of a group reach, so that copy engines move rows, and no multiprocessor.

A message of NCCL is a kernel: it waits for multiprocessors that attention has, and attention for those that it has.
Copies into and out of torch.distributed's symmetric memory take none. What they need beside is a barrier of the ranks,
a kernel of some microseconds, before keys are read that others have written, and before gradients are that came.

Each call of the group passes a barrier behind the writes of its keys, which all ranks reach behind their reads of the
calls before. So keys of two calls have memory of their own, in turn, and gradients, which are written behind that
barrier, have one.
"""

import socket
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

Pairs = list[tuple[Tensor, Tensor]]

MOST_BYTES = 2 << 30
"""Of a rank's memory that is kept for a group: calls that need more send messages."""
_ALIGNED = 1 << 20
_SLOTS = 2
_RUNS = 16  # to or from a rank: more of them are one kernel, as a copy takes some microseconds of the host's time

_of_groups: dict[tuple[str, torch.device], tuple[Any, "PeerMemory | None"]] = {}


def peer_memory(group: Any, device: torch.device) -> "PeerMemory | None":
    """That of a group, whose ranks all ask for it at once; None where ranks do not reach each other's memory."""
    key = (group.group_name, device)
    known, memory = _of_groups.get(key, (None, None))
    if known is not group:  # a name may come again, of another group
        memory = PeerMemory(group, device) if device.type == "cuda" and _reaches(group, device) else None
        if memory is not None and not all(_of_ranks(group, memory.can_allocate())):
            memory = None
        _of_groups[key] = group, memory
    return memory


def _of_ranks(group: Any, value: Any) -> list[Any]:
    """The value of each rank."""
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values


def _reaches(group: Any, device: torch.device) -> bool:
    """Whether all ranks are processes of one host with a GPU each, which reads and writes the memory of the others."""
    if distributed.get_world_size(group) < 2 or "nccl" not in group._get_backend(device).name():
        return False
    places = _of_ranks(group, (socket.gethostname(), device.index))
    hosts, devices = {host for host, _ in places}, {index for _, index in places}
    able = len(hosts) == 1 and len(devices) == len(places) and max(devices) < torch.cuda.device_count()
    able = able and all(torch.cuda.can_device_access_peer(device, x) for x in devices if x != device.index)
    return all(_of_ranks(group, able and _has_symmetric_memory()))


def _has_symmetric_memory() -> bool:
    try:
        import torch.distributed._symmetric_memory as symmetric
    except ImportError:
        return False
    return all(hasattr(symmetric, name) for name in ("empty", "rendezvous"))


class PeerMemory:
    """Of this process's rank. Sizes, and the order of calls, are the same on all ranks."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self.rank, self.world = distributed.get_rank(group), distributed.get_world_size(group)
        self.stream = torch.cuda.Stream(device)
        self.slot = 0
        """Of the keys of the call that began last."""
        self.number = 0
        """Of the memory, which is another one when it has grown."""
        self._timeout_ms = int(group._get_backend(device).options._timeout.total_seconds() * 1e3)
        self._memory: Tensor | None = None
        self._handle: Any = None
        self._key_bytes = self._gradient_bytes = 0
        self._captured = False
        self.current = torch.cuda.current_stream(device)
        """Of the call that began last."""

    def can_allocate(self) -> bool:
        """Whether there is such memory: systems may forbid what shares it."""
        try:
            return self.reserve(1, 0)
        except RuntimeError:
            return False

    def reserve(self, key_bytes: int, gradient_bytes: int) -> bool:
        """Memory for a rank's keys and for gradients that arrive; False where that is more than is kept."""
        if key_bytes <= self._key_bytes and gradient_bytes <= self._gradient_bytes:
            return True
        keys, gradients = (
            -(-max(x) // _ALIGNED) * _ALIGNED
            for x in ((key_bytes, self._key_bytes), (gradient_bytes, self._gradient_bytes))
        )
        if _SLOTS * keys + gradients > MOST_BYTES:
            return False
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("memory for the ranks' keys is made by a call's first run: run it before it is captured")
        self._allocate(keys, gradients)
        return True

    def _allocate(self, keys: int, gradients: int) -> None:
        import torch.distributed._symmetric_memory as symmetric

        torch.cuda.synchronize(self._device)
        distributed.barrier(self._group, device_ids=[self._device.index])  # nobody reads what is freed here
        self.number += 1
        self._handle = self._memory = None
        self._key_bytes, self._gradient_bytes = keys, gradients
        self._memory = symmetric.empty(_SLOTS * keys + gradients, dtype=torch.uint8, device=self._device)
        self._handle = symmetric.rendezvous(self._memory, self._group)

    def begin(self) -> None:
        """A call's first step, on the current stream: its keys have the other slot."""
        stream = torch.cuda.current_stream(self._device)
        is_capturing = torch.cuda.is_current_stream_capturing()
        if self.current != stream:
            if not is_capturing:  # a graph may not wait for what it has not captured, and begins behind it
                stream.wait_stream(self.current)
            self.current = stream
        self.slot = (self.slot + 1) % _SLOTS
        if self._captured or is_capturing:
            self._captured = True
            self.barrier()  # a graph that runs again takes the same slots again

    def order(self, stream: torch.cuda.Stream | None = None) -> None:
        """What follows on the stream, by default copies, sees what the call has done so far."""
        (stream or self.stream).wait_event(self.current.record_event())

    def copy(self, pairs: Pairs) -> torch.cuda.Event:
        """Writes the second of each pair into the first beside the current stream."""
        with torch.cuda.stream(self.stream):
            self.copy_here(pairs)
        return self.stream.record_event()

    def copy_here(self, pairs: Pairs) -> None:
        """The same on the current one: by copy engines, or many by one kernel."""
        if len(pairs) > _RUNS:
            torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])
            return
        for to, of in pairs:
            to.copy_(of)

    def join(self) -> None:
        """Work that follows on the call's stream sees all copies."""
        self.current.wait_event(self.stream.record_event())

    def barrier(self) -> None:
        """Work that follows on the current stream runs behind what all ranks have done before theirs."""
        self._handle.barrier(channel=0, timeout_ms=self._timeout_ms)

    def keys(self, rank: int, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Of this call; `offset` in elements."""
        return self._handle.get_buffer(rank, shape, dtype, self.slot * self._key_bytes // dtype.itemsize + offset)

    def gradients(self, rank: int, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Those that arrive at a rank; `offset` in elements."""
        return self._handle.get_buffer(rank, shape, dtype, _SLOTS * self._key_bytes // dtype.itemsize + offset)

    def others(self) -> list[int]:
        """All ranks but this one, each rank in an order of its own, so that no two read from one at once."""
        return [(self.rank + step) % self.world for step in range(1, self.world)]
