# SPDX-License-Identifier: Apache-2.0
"""The tensors that traced functions read, by the names that the functions have for them."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor

from strobe._option_list import MOST_CAPTURES
from strobe.torch.flex.operations import kind_of_dtype
from strobe.torch.flex.values import Kind, known

# What a call takes as it is; int32 stands for other integers and float32 for float64.
_TAKEN = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool})
_STAND_INS: dict[Kind, torch.dtype] = {"real": torch.float32, "int": torch.int32, "bool": torch.bool}
_OF_THE_LANGUAGE = frozenset(
    (
        *("score", "q", "k", "head", "head_kv", "batch", "q_len", "k_len", "min", "max", "abs", "exp", "exp2", "log"),
        *("tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos", "floor", "float", "int", "pow", "true", "false", "inf"),
    )
)
_LONGEST_NAME = 32
_DEEPEST = 4  # functions within functions, where names are looked for


class Captures:
    """Of a call's functions, one name each. Tensors of rank 0 are copied to ``device``, if it is given."""

    def __init__(self, device: torch.device | None, functions: Iterable[Any]) -> None:
        self._device = device
        self._functions = tuple(functions)
        self._names: dict[int, str] | None = None  # by id(), which the functions keep alive
        self._given: dict[int, tuple[str, Tensor]] = {}
        self._captures: dict[str, Tensor] = {}
        self._lengths: dict[str, int] = {}
        self._lengths_of: dict[tuple[str, int], str] = {}

    def settled(self, *texts: str | None) -> tuple[list[str | None], dict[str, Tensor]]:
        """The texts, and the captures that they read. A function may look at others, whose values come to nothing.

        Lengths of axes are captures as long as there may be more, and numbers in the texts from there on.
        """
        settled = list(texts)
        words = {word for text in texts if text is not None for word in re.findall(r"\w+", text)}
        captures = {name: tensor for name, tensor in self._captures.items() if name in words}
        for name, extent in self._lengths.items():
            if name not in words:
                continue
            if len(captures) < MOST_CAPTURES:
                captures[name] = torch.full((), extent, dtype=torch.int32, device=self._device)
            else:
                settled = [text and re.sub(rf"\b{name}\b", str(known(extent)), text) for text in settled]
        return settled, captures

    def length_of(self, capture: str, axis: int, extent: int) -> str:
        """The name of an axis' length, which texts read so that they are the same for every length."""
        name = self._lengths_of.get((capture, axis))
        if name is None:
            name = self._lengths_of[capture, axis] = self._unused(f"{capture[: _LONGEST_NAME - 7]}_len{axis}")
            self._lengths[name] = extent
        return name

    def name_of(self, tensor: Tensor, fail: Callable[[str], NoReturn]) -> tuple[str, Kind]:
        """The name of the capture that the tensor is or becomes, and the kind of its elements."""
        kind = kind_of_dtype(tensor.dtype)
        if kind is None:
            fail(f"a tensor of {tensor.dtype}")
        earlier = self._given.get(id(tensor))
        if earlier is not None:
            return earlier[0], kind
        if len(self._captures) == MOST_CAPTURES:
            fail(f"more than {MOST_CAPTURES} tensors, of its score_mod and mask_mod together")
        name = self._free_name(tensor)
        self._given[id(tensor)] = name, tensor
        with torch._C.DisableTorchFunction():
            taken = tensor if tensor.dtype in _TAKEN else tensor.to(_STAND_INS[kind])
            if tensor.dim() == 0 and self._device not in (None, tensor.device):
                taken = taken.to(self._device)
        self._captures[name] = taken
        return name, kind

    def _free_name(self, tensor: Tensor) -> str:
        if self._names is None:
            self._names = {}
            # A compiler does not know what a function that it has just made can name.
            for function in () if torch.compiler.is_compiling() else self._functions:
                for name, value in _tensors_of(function, _DEEPEST):
                    self._names.setdefault(id(value), name)
        word = re.sub(r"\W+", "_", self._names.get(id(tensor), "tensor"), flags=re.ASCII)[: _LONGEST_NAME - 3]
        if not word or word[0].isdigit() or word in _OF_THE_LANGUAGE:
            word = f"t_{word}"
        return self._unused(word)

    def _unused(self, word: str) -> str:
        name, count = word, 1
        while name in self._captures or name in self._lengths:
            count += 1
            name = f"{word}_{count}"
        return name


def _tensors_of(function: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors that a function can name, and those of the functions and objects that it can."""
    if function is None or depth == 0:
        return
    for name, value in _named(function):
        if isinstance(value, Tensor):
            yield name, value
        elif name == "self" or _is_followed(value):
            yield from _tensors_of(value, depth - 1)
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value[:8]):
                if isinstance(item, Tensor):
                    yield f"{name}_{i}", item
                elif _is_followed(item):
                    yield from _tensors_of(item, depth - 1)
        elif isinstance(value, dict):
            yield from ((str(key), item) for key, item in list(value.items())[:64] if isinstance(item, Tensor))


def _is_followed(value: Any) -> bool:
    """A function, or an object that is called as one, which somebody wrote in Python."""
    if isinstance(value, (FunctionType, MethodType, partial)):
        return True
    return callable(value) and isinstance(type(value).__dict__.get("__call__"), FunctionType)


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    code = getattr(function, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:  # a name that has no value yet
                continue
        names = function.__globals__
        yield from ((name, names[name]) for name in code.co_names if name in names)
        defaults = function.__defaults__ or ()
        yield from zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False)
    if isinstance(function, partial):
        yield "func", function.func
        yield from ((f"argument_{i}", value) for i, value in enumerate(function.args))
        yield from function.keywords.items()
    owner = getattr(function, "__self__", function if code is None else None)
    if owner is not None:
        yield from list(getattr(owner, "__dict__", {}).items())
        yield from list(getattr(owner, "_parameters", {}).items())
        yield from list(getattr(owner, "_buffers", {}).items())
