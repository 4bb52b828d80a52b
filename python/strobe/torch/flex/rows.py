# SPDX-License-Identifier: Apache-2.0
"""Rows: an axis of a captured tensor without an index. Texts have no loops, so what is done to a row is written out."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from strobe.torch.flex.functions import OPERATIONS
from strobe.torch.flex.operations import (
    add,
    divide,
    function,
    logical_and,
    logical_or,
    maximum,
    minimum,
    multiply,
    to_boolean,
    to_integer,
    to_real,
)
from strobe.torch.flex.values import Part, Row, Value, known, number

LONGEST_ROW = 64
_OF_ONE_VALUE = frozenset(
    {"dim", "ndimension", "numel", "nelement", "size", "is_floating_point", "view", "reshape", "unsqueeze"}
)
"""Operations whose result is no value for each element."""


def has_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(x, (Row, Part)) for x in (*args, *kwargs.values()))


def is_real(x: Any) -> bool:
    """Of a traced value, or of a row's elements."""
    if isinstance(x, Row):
        x = x.values[0]
    return x.kind == "real" if isinstance(x, Value) else isinstance(x, Part) and x.dtype.is_floating_point


def unsqueezed(value: Value, dim: int) -> Row:
    if dim not in (0, -1):
        value.trace.fail(f"unsqueeze({dim}) of a traced value, which has no axes")
    return Row(value.trace, [value])


def of_rows(trace: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation with a row among its arguments: a row, or a value of a reduction."""
    args = tuple(_made_row(trace, name, x) for x in args)
    kwargs = {key: _made_row(trace, name, x) for key, x in kwargs.items()}
    if name in _PRODUCTS:
        return _product(trace, name, *args, **kwargs)
    if name in ("norm", "vector_norm"):
        return _norm(name, *args, **kwargs)
    if name in _REDUCTIONS:
        return _reduced(name, *args, **kwargs)
    if name == "squeeze" and len(args[0]) == 1:
        return args[0].values[0]
    if name not in OPERATIONS or name in _OF_ONE_VALUE:
        row = next(x for x in (*args, *kwargs.values()) if isinstance(x, Row))
        raise row.failure(f"`{name}`")

    def element(i: int) -> Value:
        return trace.operate(name, tuple(_at(x, i) for x in args), {key: _at(x, i) for key, x in kwargs.items()})

    return Row(trace, map(element, range(_length(trace, name, *args, *kwargs.values()))))


def _made_row(trace: Any, name: str, x: Any) -> Any:
    """A part of a tensor, or a tensor beside one, as a row; other arguments as they are."""
    if isinstance(x, Tensor) and x.dim() == 1:
        x = Part(trace, x, [None])
    return row_of(trace, x, f"`{name}`") if isinstance(x, Part) else x


def row_of(trace: Any, part: Part, what: str) -> Row:
    """The elements of a part, for what needs them all."""
    if part.ndim != 1:
        raise part.failure(what)
    length = known(len(part))
    if not 0 < length <= LONGEST_ROW:
        trace.fail(f"{what} of a row of {length} elements, where 1 to {LONGEST_ROW} are written out")
    return Row(trace, [part[i] for i in range(length)])


def element_or_slice(row: Row, index: Any) -> Value | Row:
    if isinstance(index, int):
        return row.values[index]
    if not isinstance(index, slice) or not row.values[index]:
        raise row.failure("an index that is no number")
    return Row(row.trace, row.values[index])


def _length(trace: Any, name: str, *values: Any) -> int:
    lengths = {len(x) for x in values if isinstance(x, Row)} - {1}
    if len(lengths) > 1:
        trace.fail(f"`{name}` of rows of {' and '.join(map(str, sorted(lengths)))} elements")
    return lengths.pop() if lengths else 1


def _at(x: Any, i: int) -> Any:
    return x.values[i % len(x)] if isinstance(x, Row) else x


def _product(trace: Any, name: str, a: Any, b: Any = None, other: Any = None, tensor: Any = None) -> Value:
    """The sum of products of two rows."""
    rows = a, next(x for x in (b, other, tensor) if x is not None)
    for x in rows:
        if not isinstance(x, Row):
            trace.fail(f"`{name}` of a row and something else")
    if len(rows[0]) != len(rows[1]):
        trace.fail(f"`{name}` of rows of {len(rows[0])} and {len(rows[1])} elements")
    return _folded(add, [multiply(*(_number(x) for x in pair)) for pair in zip(*rows, strict=True)])


def _reduced(
    name: str, row: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: Any = None, **others: Any
) -> Value | Row:
    dim = axis if dim is None else dim
    if others or dim not in (None, 0, -1, (0,), (-1,), [0], [-1]):
        row.trace.fail(f"`{name}` of a row with other arguments than dim=-1 and keepdim")
    result = _REDUCTIONS[name](row.values)
    if dtype is not None:
        result = row.trace.operate("to", (result, dtype), {})
    return Row(row.trace, [result]) if keepdim else result


def _number(value: Value) -> Value:
    return to_integer(value) if value.kind == "bool" else value


def _folded(operation: Callable[[Value, Value], Value], values: Any) -> Value:
    """From the first to the last, which a text of sums and products writes without parentheses."""
    result, *rest = values
    for value in rest:
        result = operation(result, value)
    return result


def _halved(operation: Callable[[Value, Value], Value], values: Any) -> Value:
    """By halves: calls within calls are levels of a text, of which it has few."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return operation(_halved(operation, values[:middle]), _halved(operation, values[middle:]))


def _sum(values: Any) -> Value:
    return _folded(add, [_number(x) for x in values])


def _mean(values: Any) -> Value:
    return divide(to_real(_sum(values)), number(values[0].trace, float(len(values))))


def _norm(name: str, row: Row, order: Any = 2, dim: Any = None, keepdim: bool = False, **others: Any) -> Value | Row:
    order = others.pop("p", others.pop("ord", order))
    if order not in (2, "fro", None):
        row.trace.fail(f"`{name}` of order {order}, where 2 is the one there is")
    given = {key: x for key, x in others.items() if x is not None}
    return _reduced(name, row, dim, keepdim, **given)


def _root_of_squares(values: Any) -> Value:
    return function("sqrt")(_folded(add, [multiply(x, x) for x in map(to_real, values)]))


_PRODUCTS = frozenset({"dot", "vdot", "inner", "matmul"})
_REDUCTIONS: dict[str, Callable[[Any], Value]] = {
    "sum": _sum,
    "mean": _mean,
    "prod": lambda values: _folded(multiply, [_number(x) for x in values]),
    "any": lambda values: _folded(logical_or, [to_boolean(x) for x in values]),
    "all": lambda values: _folded(logical_and, [to_boolean(x) for x in values]),
    "amax": lambda values: _halved(maximum, values),
    "amin": lambda values: _halved(minimum, values),
    **dict.fromkeys(("norm", "vector_norm"), _root_of_squares),
}
