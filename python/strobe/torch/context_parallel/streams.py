# SPDX-License-Identifier: Apache-2.0
"""Kernels of a rank on several streams in turn.

A kernel begins on the multiprocessors that the ones before no longer need: the last tiles of each launch but the last
leave none idle. Work on the current stream begins behind all.
"""

import torch
from torch import Tensor

_others: dict[torch.device, tuple[torch.cuda.Stream, ...]] = {}
_OTHERS = 2  # so that one is free beside a long launch and what follows it


def others() -> tuple[torch.cuda.Stream, ...]:
    """Beside the current stream, those of all devices that were used."""
    return tuple(stream for of_device in _others.values() for stream in of_device)


class InTurn:
    """Of one pass of a call. Kernels see what the current stream has been given before this is made."""

    def __init__(self, x: Tensor, overlap: bool) -> None:
        self.overlap = overlap and x.is_cuda
        self._number = 0
        if self.overlap:
            if x.device not in _others:
                _others[x.device] = tuple(torch.cuda.Stream(x.device) for _ in range(_OTHERS))
            self._current = torch.cuda.current_stream(x.device)
            self._streams = (self._current, *_others[x.device])
            self._begun = self._current.record_event()

    def next(self) -> torch.cuda.Stream | None:
        """On which the next kernel is launched; None: the current one."""
        number, self._number = self._number, self._number + 1
        if not self.overlap or number % len(self._streams) == 0:
            return None
        stream = self._streams[number % len(self._streams)]
        if number < len(self._streams):
            stream.wait_event(self._begun)
        return stream

    def join(self) -> None:
        """Work that follows on the current stream runs behind all kernels."""
        if self.overlap:
            for stream in self._streams[1 : self._number]:
                self._current.wait_event(stream.record_event())
