# SPDX-License-Identifier: Apache-2.0
"""Types, shapes and new tensors of traced values; functions.py has the names of these operations."""

from collections.abc import Callable
from typing import Any

import torch

from strobe.torch.flex.operations import kind_of_dtype, to_boolean, to_integer, to_real
from strobe.torch.flex.values import Value, is_finite


def _cast(a: Value, dtype: torch.dtype) -> Value:
    kind = kind_of_dtype(dtype)
    if kind is None:
        raise a.trace.failure(f"a conversion to {dtype}")
    if a.kind == kind == "int" and (limits := torch.iinfo(dtype)).bits < 32:
        for bound in (a.low, a.high):
            if is_finite(bound) and not limits.min <= bound <= limits.max:
                raise a.trace.failure(f"a conversion to {dtype} of an integer that may be {int(bound)}")
    return {"real": to_real, "int": to_integer, "bool": to_boolean}[kind](a)


def to(a: Value, *targets: Any, dtype: Any = None, **where_to: Any) -> Value:
    """Tensor.to: only a dtype does something. float16 and bfloat16 do not round."""
    for target in (*targets, dtype):
        if isinstance(target, torch.dtype):
            a = _cast(a, target)
        elif hasattr(target, "dtype"):
            a = _cast(a, target.dtype)
    return a


def filled(value: Any) -> Callable[..., Value]:
    def make(a: Value, size: Any = (), *more: Any, dtype: torch.dtype | None = None, **options: Any) -> Value:
        fill, size = (more[0] if more else options.get("fill_value"), size) if value is None else (value, size)
        if tuple(size) != ():
            a.trace.fail(f"a new tensor of shape {list(size)}, which must be []")
        return _cast(a.trace.value(fill), dtype or a.dtype)

    return make


def like(value: Any) -> Callable[..., Value]:
    def make(a: Value, *fill: Any, dtype: torch.dtype | None = None, **options: Any) -> Value:
        given = fill[0] if fill else options.get("fill_value", value)
        return _cast(a.trace.value(given), dtype or a.dtype)

    return make


def same(a: Value, *shape: Any, **options: Any) -> Value:
    return a


def typed(a: Value, dtype: Any = None, non_blocking: bool = False) -> Value:
    """Tensor.type of a dtype."""
    if not isinstance(dtype, torch.dtype):
        raise a.trace.failure(f".type({'' if dtype is None else repr(dtype)}) (write .to(dtype), or .dtype)")
    return _cast(a, dtype)


def new_tensor(a: Value, data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Value:
    if isinstance(data, (list, tuple)):
        a.trace.fail("a new tensor of several elements")
    return _cast(a.trace.value(data), dtype or a.dtype)


def shaped(a: Value, *shape: Any) -> Value:
    """Tensor.view and reshape to no axes, which a traced value has already."""
    if len(shape) != 1 or not isinstance(shape[0], (tuple, list)) or len(shape[0]) != 0:
        a.trace.fail("a shape other than () of a traced value")
    return a


def detached(a: Value) -> Value:
    if a.kind == "real":
        a.trace.fail("`detach` of a real, whose gradient a text has")
    return a


def size(a: Value, dim: int | None = None) -> Any:
    return a.shape if dim is None else a.shape[dim]
