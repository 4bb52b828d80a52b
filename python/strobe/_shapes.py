# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes of a call's tensors, whatever framework they are of."""

from typing import Any

import numpy as np

from strobe import _core

Shape = tuple[int, ...]

_HEAP_TYPE = 1 << 9  # CPython's Py_TPFLAGS_HEAPTYPE

EIGHT_BIT = frozenset({"int8", "float8_e4m3fn", "torch.int8", "torch.float8_e4m3fn"})  # as dtypes print


def shape_of(tensor: Any) -> Shape:
    return getattr(tensor, "shape", ())


def output_shape(q: Any, v: Any) -> Shape:
    """[.., heads_q, head_dim_v]; whatever there is of it where q or v is not of a call's shape, which the call says."""
    return (*shape_of(q)[:-1], *shape_of(v)[-1:])


def eight_bit_output_shape(q: Any, v: Any) -> Shape:
    """The same for v [batch, heads_kv, head_dim_v, keys], or packed [heads_kv, head_dim_v, keys]."""
    return (*shape_of(q)[:-1], *shape_of(v)[-2:-1])


def lse_shape(q: Any) -> Shape:
    """[batch, heads_q, seqlen_q], or [heads_q, total_q] for packed q."""
    shape = shape_of(q)
    if len(shape) == 4:
        return (shape[0], shape[2], shape[1])
    return (*shape[-2:-1], *shape[-3:-2])


def max_logits_shape(q: Any, cu_seqlens_q: Any) -> Shape:
    """[batch, heads_q]."""
    batch = shape_of(q)[:1] if cu_seqlens_q is None else tuple(extent - 1 for extent in shape_of(cu_seqlens_q)[:1])
    return (*batch, *shape_of(q)[-2:-1])


def tensor_shape(shape: Shape, dtype: str, device: str) -> _core.TensorShape:
    """What a plan needs of a tensor: ``dtype`` as "float16", ``device`` as "cpu", "cuda" or "cuda:1"."""
    if not isinstance(device, str):
        raise wrong_type("device", device, "text: cpu, cuda or cuda:INDEX")
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f'device is "{device}": it must be cpu, cuda or cuda:INDEX')
    return _core.TensorShape(list(shape), dtype, kind == "cuda", int(index or 0))


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype, or that of ml_dtypes, without which NumPy has neither bfloat16 nor float8."""
    if name in ("bfloat16", "float8_e4m3fn"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def dtype_name(dtype: Any, argument: str = "dtype") -> str:
    """ "bfloat16" of itself, of torch.bfloat16, of a NumPy dtype and of a scalar type; TypeError for anything else."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    if not name.isidentifier() and not name.startswith("torch."):
        raise wrong_type(argument, dtype, "a dtype or its name")
    return name.removeprefix("torch.")


def check_tensors(**tensors: Any) -> None:
    """TypeError for what has neither a shape nor a dtype."""
    for name, tensor in tensors.items():
        if not hasattr(tensor, "shape") or not hasattr(tensor, "dtype"):
            raise wrong_type(name, tensor, "a tensor")


def wrong_type(argument: str, value: Any, accepted: str) -> TypeError:
    """In the words of the C++ module."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__name__}" if kind.__flags__ & _HEAP_TYPE else kind.__name__
    return TypeError(f"{argument} is of type {name}: it must be {accepted}")
