# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors as memory that calls read and write; strobe.torch is what its tape and compilers see."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strobe._frameworks.base import NOT_RECORDED, Framework
from strobe._frameworks.torch_rows import visible_rows
from strobe._option_list import captures_of, is_seeded
from strobe._shapes import output_shape

_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})


class Torch(Framework):
    name = "torch"
    has_arithmetic = True

    def empty(self, shape: Sequence[int], like: Any, dtype: str | None = None) -> Any:
        return like.new_empty(shape) if dtype is None else like.new_empty(shape, dtype=getattr(torch, dtype))

    def empty_output(self, q: Any, v: Any) -> Any:
        try:
            if not isinstance(v, Tensor) or q.ndim == 0 or v.ndim == 0 or q.shape[-1] != v.shape[-1]:
                return q.new_empty(output_shape(q, v))
            return torch.empty_like(q, memory_format=torch.contiguous_format)  # in half the time of new_empty
        except RuntimeError as error:
            if q.layout == torch.strided and not q.is_nested:
                raise
            layout = "of nested tensors" if q.is_nested else q.layout
            raise ValueError(f"q has the layout {layout}: it must be dense, torch.strided") from error

    def workspace_allocator(self, like: Any, stream: int | None) -> Callable[[int], Any] | None:
        if not like.is_cuda:
            return None
        if stream is None:  # the call runs on the current one
            return partial(torch.empty, dtype=torch.uint8, device=like.device)
        return partial(_workspace, like.device, stream)

    def without_tape(self, q: Any, k: Any, v: Any, options: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # looked at first: a short call's time is what the host does before its launch
            tensors = {name: options.get(name) for name in ("bias", "sink", "scale", "qv")}
            if options.get("captures"):
                tensors |= {f"capture `{name}`": x for name, x in captures_of(options).items()}
            self.reject_gradients(NOT_RECORDED, q=q, k=k, v=v, **tensors)
        if options.get("dropout") and not is_seeded(options):
            options["random_state"] = draw_random(q).view(torch.int32)
        return without_negative_bit(q, k, v)

    def reject_gradients(self, why: str, **tensors: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for name, tensor in tensors.items():
            if getattr(tensor, "requires_grad", False):
                raise ValueError(f"{name} requires a gradient, which {why}")

    def is_compiling(self) -> bool:
        return torch.compiler.is_compiling()

    def region(self, name: str) -> Any:
        return torch.profiler.record_function(name) if torch.autograd._profiler_enabled() else None

    def can_read(self, tensor: Any) -> bool:
        return tensor.device.type == "cpu" and type(tensor) in _PLAIN_TYPES and not torch.compiler.is_compiling()

    def select(self, condition: Any, x: Any, otherwise: float) -> Any:
        return torch.where(condition, x, otherwise)

    def cast(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(torch, dtype))

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        return x.expand(shape)

    def dense(self, x: Any) -> Any:
        return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()

    def join_columns(self, x: Any, y: Any) -> Any:
        return torch.cat([x, y], dim=-1)

    def visible_rows(self, mask: Any, k: Any, v: Any) -> tuple[Any, Any, dict[str, Any]] | None:
        return visible_rows(mask, k, v)

    def lengths(self, values: np.ndarray) -> Any:
        return torch.from_numpy(values)

    def mark_written(self, output: Any) -> None:
        """Makes the backward of an operation that saved the tensor raise."""
        if not output.is_inference():
            torch.autograd.graph.increment_version(output)


def _workspace(device: Any, stream: int, size: int) -> Any:
    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
        return torch.empty(size, dtype=torch.uint8, device=device)


def without_negative_bit(*tensors: Any) -> tuple[Any, ...]:
    """The tensors, where one is a view of -x copies: the dispatcher resolves such views, and calls go past it."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.is_neg():
            return tuple(x.resolve_neg() if isinstance(x, Tensor) else x for x in tensors)
    return tensors


def draw_random(q: Tensor) -> Tensor:
    """Seed and offset from the generator of q's device: without waiting for it, and anew in each replay of a graph."""
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device)
