# SPDX-License-Identifier: Apache-2.0
"""Score and mask functions of PyTorch's FlexAttention as texts: they are run once, on values that write down what they
are.

The functions run under a mode that sees every function of PyTorch: what is done to traced values becomes text, what is
done to other tensors runs as it stands, and a tensor with traced indices becomes a capture.
"""

import math
import sys
from collections.abc import Callable, Iterator
from inspect import unwrap
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from strobe._expressions import check_texts
from strobe.torch.flex.captures import Captures
from strobe.torch.flex.functions import BY_NAME, LITERAL_ARGUMENTS, METHODS, OPERATIONS, REMEDIES, name_of
from strobe.torch.flex.operations import add, compare, to_boolean, where
from strobe.torch.flex.rows import element_or_slice, has_rows, is_real, of_rows, row_of, unsqueezed
from strobe.torch.flex.values import ATOM, Part, Row, TraceError, Value, number, trace_of

_PACKAGES = tuple(str(Path(sys.modules[name].__file__ or "").parent) for name in ("strobe", "torch"))

_IN_PLACE = frozenset(
    ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift")
)
"""Python's operators that write to their first operand."""

_AUTOGRAD_FUNCTION = "a torch.autograd.Function, whose backward a text cannot have (write out what its forward does)"
_APPLY = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)
"""None since PyTorch 2.14, whose apply is no function of Python."""

MOST_AXES = 4
"""Of a capture."""


class Texts(NamedTuple):
    """A call's options: texts that change nothing are None."""

    score: str | None
    mask_text: str | None
    captures: dict[str, Tensor] | None


class Sizes(NamedTuple):
    """Of a call: they bound its positions."""

    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int


def trace(score_mod: Any, mask_mod: Any, sizes: Sizes, dtype: torch.dtype, device: torch.device | None) -> Texts:
    """The texts of ``score_mod(score, b, h, q_idx, kv_idx)`` and ``mask_mod(b, h, q_idx, kv_idx)``; either may be None.

    ``dtype`` is that of the call's tensors, and of scores as the functions see them; without a device tensors stay
    where they are. Raises TraceError, with the function's name and the line in it.
    """
    captures = Captures(device, (score_mod, mask_mod))
    of_score = of_mask = score = mask = None
    if score_mod is not None:
        of_score = Trace("score_mod", score_mod, captures, sizes, dtype, device)
        score = of_score.text_of_score()
    if mask_mod is not None:
        of_mask = Trace("mask_mod", mask_mod, captures, sizes, dtype, device)
        mask = of_mask.text_of_mask()
    score, mask = (None if text == unchanged else text for text, unchanged in ((score, "score"), (mask, "true")))
    (score, mask), named = captures.settled(score, mask)
    texts = Texts(score, mask, named or None)
    if not torch.compiler.is_compiling():
        try:
            check_texts(texts._asdict())
        except ValueError as error:
            at_fault = of_mask if of_score is None or str(error).startswith("mask") else of_score
            if at_fault is None:
                raise
            raise at_fault.failure(str(error), running=False) from None
    return texts


class Trace:
    """One function's."""

    def __init__(
        self,
        role: str,
        function: Callable[..., Any],
        captures: Captures,
        sizes: Sizes,
        score_dtype: torch.dtype,
        device: torch.device | None,
    ) -> None:
        self.role, self.function, self.captures = role, function, captures
        self.score_dtype, self.device = score_dtype, device
        pairs = zip(("batch", "head", "q", "k"), sizes, strict=True)
        self._with_gradients = role == "score_mod" and torch.is_grad_enabled()
        self._positions = [Value(self, name, ATOM, "int", 0, max(extent - 1, 0)) for name, extent in pairs]

    def text_of_score(self) -> str:
        score = self._run(Value(self, "score", ATOM, "real"), *self._positions)
        if score.kind == "bool":
            raise self.failure("its result is a truth, where a score is needed", running=False)
        return score.text

    def text_of_mask(self) -> str:
        return to_boolean(self._run(*self._positions)).text

    def _run(self, *values: Value) -> Value:
        with _Mode(self):
            try:
                result = self.function(*values)
            except (RuntimeError, TypeError) as error:  # of its checks, before an operation here was reached
                if not torch.compiler.is_compiling() and _is_of_autograd(error):
                    raise self.failure(_AUTOGRAD_FUNCTION, running=False) from None
                raise
            except IndexError as error:
                error.add_note(f"{self.role} was run on values that stand for positions, which index tensors alone")
                raise
        return self.value(result)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of PyTorch with a traced value among its arguments."""
        name = name_of(function)
        if name == "getitem":
            return self.index(*args)
        if name == "setitem":
            self.fail("it writes to a tensor")
        return self.operate(name, args, kwargs)

    def method(self, value: Value, name: str) -> Callable[..., Any]:
        name = METHODS.get(name, name)
        return lambda *args, **kwargs: self.operate(name, (value, *args), kwargs)

    def operate(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._with_gradients and any(is_real(x) for x in (*args, *kwargs.values())):
            self._check_gradients(f"`{name}`")
        if has_rows(args, kwargs):
            return of_rows(self, name, args, kwargs)
        if name == "unsqueeze":
            return unsqueezed(*args, **kwargs)
        operation = OPERATIONS.get(name)
        if operation is None:
            wrote = name.endswith("_") or name in _IN_PLACE
            remedy = f" ({REMEDIES[name]})" if name in REMEDIES else ""
            self.fail("it writes to a traced value" if wrote else f"`{name}` of a traced value{remedy}")
        if name not in BY_NAME:
            for alias in ("input", "self"):
                if alias in kwargs:
                    args = (kwargs.pop(alias), *args)
            if "other" in kwargs:
                args = (*args, kwargs.pop("other"))
        if name in LITERAL_ARGUMENTS:
            args = tuple(self.value(x) if i == 0 and isinstance(x, Tensor) else x for i, x in enumerate(args))
        else:
            args = tuple(self.value(x) for x in args)
            of_values = ("alpha", "rounding_mode", "inplace", "dtype", "memory_format", "device", "out")
            kwargs = {key: x if x is None or key in of_values else self.value(x) for key, x in kwargs.items()}
        try:
            return operation(*args, **kwargs)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, TraceError):
                raise
            self.fail(f"`{name}` with these arguments ({error})")

    def _check_gradients(self, what: str) -> None:
        """Gradients are those of the text, whatever is switched off or written by hand in the function."""
        if not torch.compiler.is_compiling() and _runs_in_autograd():
            self.fail(_AUTOGRAD_FUNCTION)
        if not torch.is_grad_enabled():
            self.fail(f"{what} without gradients, as in torch.no_grad")

    def value(self, x: Any) -> Value:
        """A number, a tensor of rank 0 or a traced value as a traced value."""
        if isinstance(x, Value):
            return x
        if isinstance(x, (Part, Row)):
            raise x.failure("the value")
        if isinstance(x, Tensor):
            if x.dim() != 0:
                self.fail(f"a tensor of shape {list(x.shape)} that has no indices: it must be of rank 0, or indexed")
            return self._loaded(x, ())
        if isinstance(x, np.ndarray) and x.ndim != 0:
            self.fail(f"a {type(x).__name__} of shape {list(x.shape)}, where a number or a tensor is needed")
        if isinstance(x, (bool, int, float, torch.SymInt)) or hasattr(x, "__float__"):
            return number(self, x)
        self.fail(f"a {type(x).__name__}, where a number or a tensor is needed")

    def index(self, tensor: Any, index: Any) -> Any:
        """tensor[index], where one of the two is traced: a value if every axis has an index then."""
        if isinstance(tensor, Part) and tensor.ndim == 1 and isinstance(index, slice):
            tensor = row_of(self, tensor, "a slice")
        if isinstance(tensor, Row):
            return element_or_slice(tensor, index)
        if isinstance(tensor, Value):
            if index is ... or (isinstance(index, tuple) and not index):
                return tensor
            self.fail("an index of a traced value")
        part = tensor if isinstance(tensor, Part) else Part(self, tensor, [None] * tensor.dim())
        given = list(index) if isinstance(index, tuple) else [index]
        free = [axis for axis, taken in enumerate(part.indices) if taken is None]
        if any(x is ... for x in given):
            at = next(i for i, x in enumerate(given) if x is ...)
            given[at : at + 1] = [slice(None)] * (len(free) - len(given) + 1)
        if len(given) > len(free):
            self.fail(f"{len(given)} indices of a tensor that has {len(free)} axes")
        indices = list(part.indices)
        for axis, x in zip(free, given, strict=False):
            if isinstance(x, slice) and x.start is None and x.stop is None and x.step is None:
                continue
            indices[axis] = self._checked_index(x, part.tensor, axis)
        if any(x is None for x in indices):
            return Part(self, part.tensor, indices)
        return self._loaded(part.tensor, tuple(indices))

    def _checked_index(self, x: Any, tensor: Tensor, axis: int) -> Value:
        """As a capture is indexed: PyTorch counts from the end where an index is negative."""
        if x is None or isinstance(x, (slice, bool, list)):
            self.fail(f"an index of type {type(x).__name__} beside traced ones, or of traced bounds")
        value = self.value(x)
        if value.kind != "int":
            self.fail("an index that is no integer")
        if value.low >= 0:
            return value
        zero = number(self, 0)
        capture, _ = self.captures.name_of(tensor, self.fail)
        length = Value(self, self.captures.length_of(capture, axis, tensor.shape[axis]), ATOM, "int", 0)
        return add(value, length if value.high < 0 else where(compare("<", value, zero), length, zero))

    def _loaded(self, tensor: Tensor, indices: tuple[Value, ...]) -> Value:
        if len(indices) > MOST_AXES:
            self.fail(f"a tensor of {len(indices)} axes, where {MOST_AXES} are the most")
        if self._with_gradients and tensor.requires_grad:
            self._check_gradients("a tensor that requires a gradient")
        name, kind = self.captures.name_of(tensor, self.fail)
        low = 0 if tensor.dtype == torch.uint8 else -math.inf
        return Value(self, name + "".join(f"[{index.text}]" for index in indices), ATOM, kind, low)

    def fail(self, what: str) -> NoReturn:
        raise self.failure(what)

    def failure(self, what: str, running: bool = True) -> TraceError:
        """For what is done in the line of the user's function that is ``running``, or by the function as a whole."""
        function = unwrap(self.function)
        name = getattr(function, "__name__", type(function).__name__)
        where = _user_line() if running and not torch.compiler.is_compiling() else None
        if where is None and (code := getattr(function, "__code__", None)) is not None:
            where = f"{code.co_filename}, line {code.co_firstlineno}"
        place = f" ({where})" if where else ""
        return TraceError(
            f"{self.role} `{name}`{place} cannot be written as text: {what}. docs/migrating.md lists what can"
        )


def _user_line() -> str | None:
    """File and line of the innermost frame that is neither this package's nor PyTorch's, above this module's."""
    for frame in _frames():
        filename = frame.f_code.co_filename
        if frame.f_code is Trace._run.__code__:
            return None
        if not filename.startswith(_PACKAGES):
            return f"{filename}, line {frame.f_lineno}"
    return None


def _runs_in_autograd() -> bool:
    codes = _codes_in_autograd()
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not Trace._run.__code__:
        if frame.f_code in codes:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_of_autograd(error: BaseException) -> bool:
    codes = _codes_in_autograd()
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in codes:
            return True
        step = step.tb_next
    return False


def _codes_in_autograd() -> set[Any]:
    """What runs in a torch.autograd.Function: its apply, or where that is not of Python the forward of any, in which
    gradients are off."""
    if _APPLY is not None:
        return {_APPLY}
    codes: set[Any] = set()
    classes: list[Any] = [] if torch.is_grad_enabled() else [torch.autograd.Function]
    while classes:
        one = classes.pop()
        classes += one.__subclasses__()
        codes.add(getattr(one.forward, "__code__", None))
    return codes


def _frames() -> Iterator[Any]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


class _Mode(TorchFunctionMode):
    """Sees the functions that tensors are given to beside traced values, which PyTorch's indexing does not look for."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if trace_of(args, kwargs) is not None:
            return self._trace.call(function, args, kwargs)
        name = name_of(function)
        if name == "setitem" or name.endswith("_"):
            self._trace.fail("it writes to a tensor")
        return function(*args, **kwargs)
