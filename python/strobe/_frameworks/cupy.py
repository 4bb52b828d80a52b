# SPDX-License-Identifier: Apache-2.0
"""CuPy's arrays, whose stream a call has to ask for: the other frameworks name theirs through DLPack."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy

from strobe._frameworks.base import ArrayFramework
from strobe._shapes import numpy_dtype


class CuPy(ArrayFramework):
    name = "cupy"
    module = cupy

    def empty(self, shape: Sequence[int], like: Any, dtype: str | None = None) -> Any:
        with like.device:
            return cupy.empty(shape, dtype=like.dtype if dtype is None else numpy_dtype(dtype))

    def is_on_gpu(self, tensor: Any) -> bool:
        return True

    def stream(self, stream: int | None) -> int | None:
        return cupy.cuda.get_current_stream().ptr if stream is None else stream

    def workspace_allocator(self, like: Any, stream: int | None) -> Callable[[int], Any] | None:
        return partial(_workspace, like.device, stream)

    def without_tape(self, q: Any, k: Any, v: Any, options: Any) -> tuple[Any, ...]:
        options["stream"] = self.stream(options.get("stream"))
        return q, k, v


def _workspace(device: Any, stream: int | None, size: int) -> Any:
    if stream is None:
        with device:
            return cupy.empty(size, cupy.uint8)
    with device, cupy.cuda.ExternalStream(stream, device.id):
        return cupy.empty(size, cupy.uint8)
