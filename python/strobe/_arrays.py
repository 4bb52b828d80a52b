"""Outputs beside the caller's tensors: of the same framework, on the same device."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_TENSOR_TYPES = {"torch": "Tensor", "jax": "Array", "cupy": "ndarray"}


def framework_of(tensor: Any, name: str) -> Any:
    """The module ``name`` if it is loaded and ``tensor`` is one of its tensors, else None."""
    module = sys.modules.get(name)
    if module is None or not isinstance(tensor, getattr(module, _TENSOR_TYPES[name], ())):
        return None
    return module


def empty(shape: Sequence[int], like: Any, *, float32: bool = False) -> Any:
    """An array that nothing is in yet, of ``like``'s dtype or float32. TypeError where ``like`` does not tell how."""
    if torch := framework_of(like, "torch"):
        return torch.empty(shape, dtype=torch.float32 if float32 else like.dtype, device=like.device)
    dtype = np.float32 if float32 else getattr(like, "dtype", None)
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype=dtype)
    if cupy := framework_of(like, "cupy"):
        with like.device:
            return cupy.empty(shape, dtype=dtype)
    if not hasattr(like, "__dlpack__"):
        return None  # no tensor, as the call will say
    raise TypeError(f"q is of type {type(like).__name__}, of which Strobe can make none: give outputs to write to")


def shape_of(tensor: Any) -> tuple[int, ...]:
    return getattr(tensor, "shape", ())


def output_shape(q: Any, v: Any) -> tuple[int, ...]:
    """[.., heads_q, head_dim_v]; whatever there is of it where q or v is not of a call's shape, which the call says."""
    return shape_of(q)[:-1] + shape_of(v)[-1:]


def lse_shape(q: Any) -> tuple[int, ...]:
    """[batch, heads_q, seqlen_q], or [heads_q, total_q] for packed q."""
    shape = shape_of(q)
    return shape[:-3] + shape[-2:-1] + shape[-3:-2]


def max_logits_shape(q: Any, cu_seqlens_q: Any) -> tuple[int, ...]:
    """[batch, heads_q]."""
    batch = shape_of(q)[:1] if cu_seqlens_q is None else tuple(extent - 1 for extent in shape_of(cu_seqlens_q)[:1])
    return (*batch, *shape_of(q)[-2:-1])


def current_stream(tensor: Any) -> int | None:
    """The stream that CuPy works on; the other frameworks say it through DLPack."""
    cupy = framework_of(tensor, "cupy")
    return cupy.cuda.get_current_stream().ptr if cupy else None
