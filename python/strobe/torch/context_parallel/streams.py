# SPDX-License-Identifier: Apache-2.0
"""Kernels of a rank on several streams in turn.

A kernel begins on the multiprocessors that the ones before no longer need: the last tiles of each launch but the last
leave none idle. Pieces, which fill what long launches leave, have streams of their own, so that none waits for the end
of a long one. Work on the current stream begins behind all.
"""

from itertools import cycle

import torch
from torch import Tensor

_others: dict[torch.device, tuple[torch.cuda.Stream, ...]] = {}
_LONG = 1  # and the current one: two long launches in turn
_PIECES = 2  # so that one is free beside a piece that ends


def others() -> tuple[torch.cuda.Stream, ...]:
    """Beside the current stream, those of all devices that were used."""
    return tuple(stream for of_device in _others.values() for stream in of_device)


class InTurn:
    """Of one pass of a call. Kernels see what the current stream has been given before this is made."""

    def __init__(self, x: Tensor, overlap: bool) -> None:
        self.overlap = overlap and x.is_cuda
        if self.overlap:
            if x.device not in _others:
                _others[x.device] = tuple(torch.cuda.Stream(x.device) for _ in range(_LONG + _PIECES))
            self._current = torch.cuda.current_stream(x.device)
            streams = _others[x.device]
            self._in_turn = {False: cycle((self._current, *streams[:_LONG])), True: cycle(streams[_LONG:])}
            self._used: list[torch.cuda.Stream] = []
            self._begun = self._current.record_event()

    def next(self, piece: bool) -> torch.cuda.Stream | None:
        """On which the next kernel is launched; None: the current one."""
        if not self.overlap:
            return None
        stream = next(self._in_turn[piece])
        if stream is self._current:
            return None
        if stream not in self._used:
            stream.wait_event(self._begun)
            self._used.append(stream)
        return stream

    def join(self) -> None:
        """Work that follows on the current stream runs behind all kernels."""
        if self.overlap:
            for stream in self._used:
                self._current.wait_event(stream.record_event())
