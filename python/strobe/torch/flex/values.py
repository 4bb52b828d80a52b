# SPDX-License-Identifier: Apache-2.0
"""Values of a traced function as texts of the language: a number, an index or a truth for each pair of a query and key.

A value is written with the least parentheses, since a text may nest 64 of them.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

Kind = Literal["bool", "int", "real"]
LONGEST_TEXT = 4096  # characters, of the language
CHOICE, OR, AND, EQUALITY, COMPARISON, SUM, PRODUCT, SIGN, ATOM = range(9)
"""How strongly a text's outermost operator binds."""

_DTYPES: dict[Kind, torch.dtype] = {"bool": torch.bool, "int": torch.int32, "real": torch.float32}
_PROPERTIES = frozenset(name for name in dir(Tensor) if not callable(getattr(Tensor, name)))
_SAME = frozenset({"T", "mT", "H", "mH", "real"})
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)


class TraceError(NotImplementedError):
    """What a function does that the language of score and mask texts has no words for."""


class Value:
    """A traced value, which stands for a tensor of rank 0 in the user's function.

    Its operators are those of functions.py, which is built on this class.
    """

    __slots__ = ("binding", "high", "kind", "low", "text", "trace")

    def __init__(
        self, trace: Any, text: str, binding: int, kind: Kind, low: float = -math.inf, high: float = math.inf
    ) -> None:
        if len(text) > LONGEST_TEXT:
            trace.fail(f"its text has more than {LONGEST_TEXT} characters")
        self.trace, self.text, self.binding, self.kind = trace, text, binding, kind
        self.low, self.high = low, high
        """Bounds of an integer, infinite where it depends on what tensors hold."""
        if kind == "int":
            for bound in (low, high):
                if is_finite(bound) and not -(2**31) <= bound < 2**31:
                    trace.fail(f"an integer that may be {int(bound)}: texts have 32 bits, where PyTorch has 64")

    def within(self, binding: int) -> str:
        """The text as an operand of an operator that binds so strongly."""
        return self.text if self.binding >= binding else f"({self.text})"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return trace_of(args, kwargs).call(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _PROPERTIES:
            return self._property(name)
        return self.trace.method(self, name)

    def _property(self, name: str) -> Any:
        if name in _SAME:
            return self
        if name in ("is_cuda", "is_cpu"):
            return self.device.type == name[3:]
        self.trace.fail(f"`.{name}` of a traced value")

    shape = torch.Size(())
    ndim = 0
    requires_grad = False

    @property
    def dtype(self) -> torch.dtype:
        return self.trace.score_dtype if self.kind == "real" else _DTYPES[self.kind]

    @property
    def device(self) -> torch.device:
        return self.trace.device or torch.device("cpu")

    def _no_value(self, what: str) -> NoReturn:
        raise self.trace.failure(f"{what}, which has none before attention runs")

    def __bool__(self) -> bool:
        self._no_value("the truth of a traced value (write torch.where for `if`, &, | and ~ for `and`, `or` and `not`)")

    def __int__(self) -> int:
        self._no_value("int() of a traced value (write .to(torch.int32))")

    def __float__(self) -> float:
        self._no_value("float() of a traced value (write .to(torch.float32))")

    def __index__(self) -> int:
        self._no_value("a traced value as an index of what is no tensor, or as a count")

    def __iter__(self) -> Iterator[Any]:
        self._no_value("a loop over a traced value")

    def __len__(self) -> int:
        self._no_value("len() of a traced value")

    def item(self) -> NoReturn:
        self._no_value(".item() of a traced value")

    def __getitem__(self, index: Any) -> Any:
        return self.trace.index(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.trace.fail("it writes to a traced value")

    def __hash__(self) -> int:
        self._no_value("a traced value as a key of a dict or a set")


class Elements:
    """What stands for several elements: functions and methods of PyTorch are the trace's."""

    __slots__ = ("trace",)
    trace: Any

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return trace_of(args, kwargs).call(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _PROPERTIES:
            raise self.failure(f"`.{name}`")
        return self.trace.method(self, name)

    def failure(self, what: str) -> Exception:
        """For what needs one element."""
        raise NotImplementedError


class Part(Elements):
    """A captured tensor some of whose axes have indices, traced ones among them."""

    __slots__ = ("indices", "tensor")

    def __init__(self, trace: Any, tensor: Tensor, indices: list[Any]) -> None:
        self.trace, self.tensor, self.indices = trace, tensor, indices

    @property
    def shape(self) -> torch.Size:
        pairs = zip(self.tensor.shape, self.indices, strict=True)
        return torch.Size([extent for extent, index in pairs if index is None])

    @property
    def ndim(self) -> int:
        return sum(index is None for index in self.indices)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.trace.index(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.trace.fail("it writes to a tensor")

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def failure(self, what: str) -> Exception:
        """For what needs an element, or a row, and is given more."""
        axes = "an axis" if self.ndim == 1 else f"{self.ndim} axes"
        return self.trace.failure(f"{what} of a tensor that has {axes} without an index: give each an index")


class Row(Elements):
    """Values along the one axis of a captured tensor that has no index, or what was computed of them."""

    __slots__ = ("values",)

    def __init__(self, trace: Any, values: Iterable[Value]) -> None:
        self.trace, self.values = trace, tuple(values)

    ndim = 1

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self.values)])

    @property
    def dtype(self) -> torch.dtype:
        return self.values[0].dtype

    @property
    def device(self) -> torch.device:
        return self.values[0].device

    def dim(self) -> int:
        return 1

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values)

    def __getitem__(self, index: Any) -> Any:
        return self.trace.index(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.trace.fail("it writes to a traced value")

    __hash__ = None  # type: ignore[assignment]

    def failure(self, what: str) -> Exception:
        """For what needs an element."""
        return self.trace.failure(f"{what} of a row of {len(self.values)} elements: index it, or write .sum(-1)")


def trace_of(*values: Any) -> Any:
    """The trace that one of the values, or of what tuples, lists, dicts and slices hold, belongs to; or None."""
    for value in values:
        if isinstance(value, (Value, Part, Row)):
            return value.trace
        if isinstance(value, dict):
            value = tuple(value.values())
        elif isinstance(value, slice):
            value = (value.start, value.stop, value.step)
        if isinstance(value, (tuple, list)) and (trace := trace_of(*value)) is not None:
            return trace
    return None


def is_finite(bound: float) -> bool:
    """Of sizes that a compiler leaves open, too."""
    return -math.inf < bound < math.inf


def known(value: Any) -> int:
    """With digits: a compiler that leaves a size open settles it for what counts."""
    if not torch.compiler.is_compiling():
        return int(value)
    return len(range(value)) if value >= 0 else -len(range(-value))


def number(trace: Any, value: Any) -> Value:
    """A literal."""
    if isinstance(value, Tensor):
        trace.fail("a tensor as an argument that must be a number")
    if isinstance(value, (bool, np.bool_)):
        return Value(trace, "true" if value else "false", ATOM, "bool")
    if isinstance(value, (int, np.integer, torch.SymInt)):
        if not -(2**31) < value < 2**31:
            trace.fail(f"{int(value)} is beyond int32")
        value = known(value)
        return Value(trace, str(value), ATOM if value >= 0 else SIGN, "int", value, value)
    value = float(value)
    if math.isnan(value):
        trace.fail("nan as a constant")
    if abs(value) > _LARGEST:
        text = "inf" if value > 0 else "-inf"
    elif abs(value) < _SMALLEST_NORMAL:
        text = "0.0"
    else:
        text = repr(value)
    return Value(trace, text, SIGN if text.startswith("-") else ATOM, "real")
