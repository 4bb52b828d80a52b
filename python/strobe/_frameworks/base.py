# SPDX-License-Identifier: Apache-2.0
"""What calls ask of a framework, answered for one that is known by DLPack alone."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from strobe._shapes import output_shape


class Framework:
    """The framework that a call's tensors are of: what it allocates, and what it wants to be told."""

    name = ""

    def empty(self, shape: Sequence[int], like: Any, dtype: str | None = None) -> Any:
        """An array with unspecified elements on the device of ``like``, of ``dtype`` or of that of ``like``."""
        if not hasattr(like, "__dlpack__"):
            return None  # no tensor, as the call will say
        raise TypeError(f"q is of type {type(like).__name__}, of which Strobe can make none: give outputs to write to")

    def empty_output(self, q: Any, v: Any) -> Any:
        """An array for attention's output, row-major."""
        return self.empty(output_shape(q, v), q)

    def is_on_gpu(self, tensor: Any) -> bool:
        return bool(getattr(tensor, "is_cuda", False))

    def stream(self, stream: int | None) -> int | None:
        """The stream of a call: ``stream`` if it is given, None where tensors name their stream through DLPack."""
        return stream

    def workspace_allocator(self, like: Any, stream: int | None) -> Callable[[int], Any] | None:
        """A function that allocates a call's workspace beside ``like``, on a GPU; None if the library is to allocate.

        ``stream`` is the stream that the caller named, if any. PyTorch and CuPy give memory out in the order of a
        stream, so that the memory may be returned to them when the call returns: work that is enqueued later on the
        same stream can have it. In a CUDA graph it belongs to the graph.
        """
        return None

    def without_tape(self, q: Any, k: Any, v: Any, options: Any) -> tuple[Any, ...]:
        """q, k and v for a forward that records no gradient. Adds to ``options`` what the framework provides."""
        return q, k, v

    def reject_gradients(self, why: str, **tensors: Any) -> None:
        """ValueError for a tensor that requires a gradient; ``why`` completes "q requires a gradient, which ..."."""

    def is_compiling(self) -> bool:
        """Whether the call is traced by the framework's compiler, and no tensor has elements."""
        return False

    def region(self, name: str) -> AbstractContextManager[Any] | None:
        """What the framework's profiler shows by this name; None if none is on."""
        return None

    def mark_written(self, output: Any) -> None:
        """Tells the framework that a call has written to the caller's tensor."""
