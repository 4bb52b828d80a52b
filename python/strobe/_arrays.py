# SPDX-License-Identifier: Apache-2.0
"""Outputs beside the caller's tensors: of the same framework, on the same device."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

_TENSOR_TYPES = {"torch": "Tensor", "jax": "Array", "cupy": "ndarray"}
EIGHT_BIT = frozenset({"int8", "float8_e4m3fn", "torch.int8", "torch.float8_e4m3fn"})  # as dtypes print
_framework_of_type: dict[type, str] = {np.ndarray: "numpy"}  # what was found so far


def framework_of(tensor: Any) -> str:
    """ "numpy", "torch", "jax" or "cupy": the module whose tensor this is; "" for what is of none of them."""
    return _framework_of_type.get(type(tensor)) or _find_framework(tensor)


def _find_framework(tensor: Any) -> str:
    if isinstance(tensor, np.ndarray):
        return "numpy"
    for name, tensor_type in _TENSOR_TYPES.items():
        module = sys.modules.get(name)  # a framework that is not loaded made no tensor
        if module is not None and isinstance(tensor, getattr(module, tensor_type, ())):
            _framework_of_type[type(tensor)] = name
            return name
    return ""


def is_on_gpu(tensor: Any) -> bool:
    return framework_of(tensor) == "cupy" or bool(getattr(tensor, "is_cuda", False))


def empty(shape: Sequence[int], like: Any, dtype: str | None = None) -> Any:
    """An array that nothing is in yet, of ``dtype`` or ``like``'s. TypeError where ``like`` does not tell how."""
    framework = framework_of(like)
    if framework == "torch":
        return like.new_empty(shape) if dtype is None else like.new_empty(shape, dtype=_torch_dtype(dtype))
    dtype = getattr(like, "dtype", None) if dtype is None else numpy_dtype(dtype)
    if framework == "numpy":
        return np.empty(shape, dtype=dtype)
    if framework == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype=dtype)
    if not hasattr(like, "__dlpack__"):
        return None  # no tensor, as the call will say
    raise TypeError(f"q is of type {type(like).__name__}, of which Strobe can make none: give outputs to write to")


def _torch_dtype(name: str) -> Any:
    return getattr(sys.modules["torch"], name)


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype, or that of ml_dtypes, without which NumPy has neither bfloat16 nor float8."""
    if name in ("bfloat16", "float8_e4m3fn"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def dtype_name(dtype: Any) -> str:
    """ "bfloat16" of itself, of torch.bfloat16, of a NumPy dtype and of a scalar type."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.removeprefix("torch.")


def without_negative_bit(*tensors: Any) -> tuple[Any, ...]:
    """PyTorch's tensors, where one is a view of -x copies: the dispatcher resolves such views, and we go past it."""
    for tensor in tensors:
        if framework_of(tensor) == "torch" and tensor.is_neg():
            return tuple(x.resolve_neg() if framework_of(x) == "torch" else x for x in tensors)
    return tensors


def check_outputs(**outputs: Any) -> None:
    """ValueError for a tensor of PyTorch that requires a gradient, which what is written to it would not have."""
    for name, output in outputs.items():
        if framework_of(output) == "torch" and output.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise ValueError(f"{name} requires a gradient, which what is written to it does not have: detach it")


def mark_written(*outputs: Any) -> None:
    """Tells PyTorch's tape that the caller's tensors have changed, so that the backward of what saved them raises."""
    for output in outputs:
        if framework_of(output) == "torch" and not output.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(output)


def empty_output(q: Any, v: Any) -> Any:
    """An array for attention's output, row-major."""
    if framework_of(q) == "torch" == framework_of(v) and q.ndim and v.ndim and q.shape[-1] == v.shape[-1]:
        torch = sys.modules["torch"]
        try:
            return torch.empty_like(q, memory_format=torch.contiguous_format)  # in half the time of new_empty
        except RuntimeError as error:
            if q.layout == torch.strided:
                raise
            raise ValueError(f"q has the layout {q.layout}: it must be dense, torch.strided") from error
    return empty(output_shape(q, v), q)


def shape_of(tensor: Any) -> tuple[int, ...]:
    return getattr(tensor, "shape", ())


def output_shape(q: Any, v: Any) -> tuple[int, ...]:
    """[.., heads_q, head_dim_v]; whatever there is of it where q or v is not of a call's shape, which the call says."""
    return (*shape_of(q)[:-1], *shape_of(v)[-1:])


def eight_bit_output_shape(q: Any, v: Any) -> tuple[int, ...]:
    """The same for v [batch, heads_kv, head_dim_v, keys], or packed [heads_kv, head_dim_v, keys]."""
    return (*shape_of(q)[:-1], *shape_of(v)[-2:-1])


def lse_shape(q: Any) -> tuple[int, ...]:
    """[batch, heads_q, seqlen_q], or [heads_q, total_q] for packed q."""
    shape = shape_of(q)
    if len(shape) == 4:
        return (shape[0], shape[2], shape[1])
    return (*shape[-2:-1], *shape[-3:-2])


def max_logits_shape(q: Any, cu_seqlens_q: Any) -> tuple[int, ...]:
    """[batch, heads_q]."""
    batch = shape_of(q)[:1] if cu_seqlens_q is None else tuple(extent - 1 for extent in shape_of(cu_seqlens_q)[:1])
    return (*batch, *shape_of(q)[-2:-1])


def cupy_stream() -> int:
    """The stream that CuPy works on; the other frameworks say theirs through DLPack."""
    return sys.modules["cupy"].cuda.get_current_stream().ptr


def workspace_allocator(like: Any, stream: int | None) -> Callable[[int], Any] | None:
    """What allocates a call's workspace beside ``like``, where that is on a GPU: the allocator of its framework.

    None where there is none, and on the CPU: the library allocates. ``stream`` is the caller's, if it named one.
    PyTorch and CuPy hand memory out in the order of a stream, so that it may go back to them when the call returns:
    what is enqueued later on that stream can have it. In a CUDA graph it stays the graph's.
    """
    framework = framework_of(like)
    if framework == "torch" and like.is_cuda:
        torch = sys.modules["torch"]
        if stream is None:  # the call runs on the current one
            return partial(torch.empty, dtype=torch.uint8, device=like.device)
        return partial(_torch_workspace, like.device, stream)
    if framework == "cupy":
        return partial(_cupy_workspace, like.device, stream)
    return None


def _torch_workspace(device: Any, stream: int, size: int) -> Any:
    torch = sys.modules["torch"]
    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
        return torch.empty(size, dtype=torch.uint8, device=device)


def _cupy_workspace(device: Any, stream: int | None, size: int) -> Any:
    cupy = sys.modules["cupy"]
    if stream is None:
        with device:
            return cupy.empty(size, cupy.uint8)
    with device, cupy.cuda.ExternalStream(stream, device.id):
        return cupy.empty(size, cupy.uint8)
