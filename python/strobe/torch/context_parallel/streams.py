# SPDX-License-Identifier: Apache-2.0
"""Kernels of a rank side by side, each on the stream of its lane.

A kernel begins on the multiprocessors that the ones before no longer need: the last tiles of each launch but the last
leave none idle. Pieces, which fill what long launches leave, have lanes of their own, so that none waits for the end
of a long one.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

LONG = (0, 1)
"""The lanes of long launches, in turn; 0 is the current stream."""
PIECES = (2, 3)
"""Those of pieces: one is free beside a piece that ends."""

BACKWARD = (0, 2)
"""Those of a backward's launches, in turn: what prepares and finishes one, and its last tiles, run beside another."""

_of_lanes: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def others() -> tuple[torch.cuda.Stream, ...]:
    """Beside the current stream, those of all devices that were used."""
    return tuple(_of_lanes.values())


def _stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    if (device, lane) not in _of_lanes:
        _of_lanes[device, lane] = torch.cuda.Stream(device)
    return _of_lanes[device, lane]


class Lanes:
    """Of one pass of a call. Kernels see what the current stream has been given before this is made."""

    def __init__(self, x: Tensor, used: Iterable[int]) -> None:
        self._streams = {lane: _stream(x.device, lane) for lane in used if lane > 0}
        if self._streams:
            self._current = torch.cuda.current_stream(x.device)
            begun = self._current.record_event()
            for stream in self._streams.values():
                stream.wait_event(begun)

    def stream(self, lane: int) -> torch.cuda.Stream | None:
        """None: the current one."""
        return self._streams.get(lane)

    def mark(self, lane: int) -> torch.cuda.Event | None:
        """What the lane has been given so far; None where there is one lane alone."""
        return (self.stream(lane) or self._current).record_event() if self._streams else None

    def wait(self, lane: int, event: torch.cuda.Event | None) -> None:
        """The lane's kernels that follow begin behind the event."""
        if event is not None:
            (self.stream(lane) or self._current).wait_event(event)

    def join(self) -> None:
        """Work that follows on the current stream runs behind all kernels."""
        for stream in self._streams.values():
            self._current.wait_event(stream.record_event())
