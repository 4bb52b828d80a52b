# SPDX-License-Identifier: Apache-2.0
"""Functions and types that show their options: to help(), to inspect.signature() and to completion at a prompt."""

import inspect
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from strobe._option_list import Option, options_of, type_name
from strobe._options import (
    AppendOptions,
    EightBitOptions,
    JaxOptions,
    Options,
    QuantizeOptions,
    ScoreOptions,
    TensorOptions,
)

Function = TypeVar("Function", bound=Callable[..., Any])

_WIDTH = 100


class _Type:
    """A type in a signature, which prints as it is written in the source."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def with_options(accepted: Any) -> Callable[[Function], Function]:
    """A decorator of functions whose ``**options`` are those of a TypedDict of _options.py."""
    options = options_of(accepted).values()

    def add(function: Function) -> Function:
        function.__signature__ = _signature(function, options)  # type: ignore[attr-defined]
        function.__doc__ = _text(function.__doc__, options)
        return function

    return add


def _signature(function: Callable[..., Any], options: Iterable[Option]) -> inspect.Signature:
    """The function's, with the options as keyword-only parameters in the place of ``**options``."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=_Type(type_name(parameter.annotation)))
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    for option in options:
        annotation = _Type(option.type_name)
        parameters.append(
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation
            )
        )
    return signature.replace(parameters=parameters, return_annotation=_Type(type_name(signature.return_annotation)))


@cache
def _entry(option: Option) -> str:
    """The option in a docstring; several functions share it, and to wrap a text takes long in an import."""
    default = "" if option.default is None else f" = {option.default!r}"
    text = textwrap.fill(option.text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    return f"{option.name}: {option.type_name}{default}\n{text}"


def _text(introduction: str | None, options: Iterable[Option]) -> str:
    """The docstring, and what each option means below it."""
    return "\n\n".join([inspect.cleandoc(introduction or ""), "Options:", *map(_entry, options)])


for _type in (ScoreOptions, EightBitOptions, TensorOptions, JaxOptions, Options, AppendOptions, QuantizeOptions):
    _type.__doc__ = _text(_type.__doc__, options_of(_type).values())
