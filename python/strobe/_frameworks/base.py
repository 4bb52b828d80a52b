# SPDX-License-Identifier: Apache-2.0
"""What calls ask of a framework, answered for one that is known by DLPack alone."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from strobe._shapes import numpy_dtype, output_shape

NOT_RECORDED = "strobe.attention does not record: call strobe.torch.attention"


class Framework:
    """The framework that a call's tensors are of: what it allocates, and what it wants to be told."""

    name = ""
    has_arithmetic = False
    """Whether select() and what stands below it are there."""

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

    def device_text(self, tensor: Any) -> str:
        """ "cpu", or "cuda:0"."""
        if not self.is_on_gpu(tensor):
            return "cpu"
        device = tensor.device
        return f"cuda:{device.id if hasattr(device, 'id') else device.index}"

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

    def can_read(self, tensor: Any) -> bool:
        """Whether the values of a tensor are there for the host, without waiting for them."""
        return False

    def select(self, condition: Any, x: Any, otherwise: float) -> Any:
        """``x`` where the condition holds, else the number, in the dtype of ``x``."""
        raise NotImplementedError

    def cast(self, x: Any, dtype: str) -> Any:
        raise NotImplementedError

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        """A view that repeats axes of extent 1."""
        raise NotImplementedError

    def dense(self, x: Any) -> Any:
        """The tensor, or a copy, whose last axis is dense, as calls need it."""
        raise NotImplementedError

    def join_columns(self, x: Any, y: Any) -> Any:
        """A tensor whose last axis has the columns of ``x`` and then those of ``y``."""
        raise NotImplementedError

    def visible_rows(self, mask: Any, k: Any, v: Any) -> tuple[Any, Any, dict[str, Any]] | None:
        """k, v and options of a call that reads no key that the bool mask [batch or 1, 1, 1, seqlen_k or 1] hides.

        Without waiting for a GPU, and without copies of k and v; None where that cannot be.
        """
        return None

    def lengths(self, values: np.ndarray) -> Any:
        """int32 values as a tensor in host memory."""
        raise NotImplementedError


class ArrayFramework(Framework):
    """NumPy, and CuPy, whose functions have the same names."""

    has_arithmetic = True
    module: Any = None

    def select(self, condition: Any, x: Any, otherwise: float) -> Any:
        return self.module.where(condition, x, x.dtype.type(otherwise))

    def cast(self, x: Any, dtype: str) -> Any:
        return x.astype(numpy_dtype(dtype))

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        return self.module.broadcast_to(x, shape)

    def dense(self, x: Any) -> Any:
        return self.module.ascontiguousarray(x)

    def join_columns(self, x: Any, y: Any) -> Any:
        return self.module.concatenate([x, y], axis=-1)
