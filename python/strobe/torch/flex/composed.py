# SPDX-License-Identifier: Apache-2.0
"""Operations of PyTorch's on traced values that are made of others; functions.py has their names."""

import math
from collections.abc import Callable
from typing import Any

import torch

from strobe.torch.flex.operations import (
    absolute,
    add,
    clamp,
    compare,
    divide,
    exp,
    floor,
    floor_divide,
    function,
    literal,
    log,
    logical_and,
    logical_or,
    maximum,
    minimum,
    multiply,
    negative,
    remainder,
    subtract,
    to_integer,
    trunc,
    where,
)
from strobe.torch.flex.values import Value, number

sin, cos, sigmoid, tanh = (function(name) for name in ("sin", "cos", "sigmoid", "tanh"))


def scaled(function: Callable[[Value], Value], factor: float) -> Callable[[Value], Value]:
    return lambda a: multiply(function(a), number(a.trace, factor))


def square(a: Value) -> Value:
    return multiply(a, a)


def reciprocal(a: Value) -> Value:
    return divide(number(a.trace, 1.0), a)


def log1p(a: Value) -> Value:
    return log(add(number(a.trace, 1.0), a))


def expm1(a: Value) -> Value:
    return subtract(exp(a), number(a.trace, 1.0))


def tan(a: Value) -> Value:
    return divide(sin(a), cos(a))


def relu(a: Value, inplace: bool = False) -> Value:
    return maximum(a, number(a.trace, 0))


def silu(a: Value, inplace: bool = False) -> Value:
    return multiply(a, sigmoid(a))


def softplus(a: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    x = multiply(a, number(a.trace, beta)) if beta != 1 else a
    smooth = log1p(exp(x))
    smooth = divide(smooth, number(a.trace, beta)) if beta != 1 else smooth
    return where(compare(">", x, number(a.trace, threshold)), a, smooth)


def sign(a: Value) -> Value:
    zero = number(a.trace, 0)
    up, down = (number(a.trace, float(x) if a.kind == "real" else x) for x in (1, -1))
    return where(compare(">", a, zero), up, where(compare("<", a, zero), down, multiply(a, zero)))


def _half(a: Value) -> Value:
    return multiply(a, number(a.trace, 0.5))


def sinh(a: Value) -> Value:
    return _half(subtract(exp(a), exp(negative(a))))


def cosh(a: Value) -> Value:
    return _half(add(exp(a), exp(negative(a))))


def leaky_relu(a: Value, negative_slope: Any = 0.01, inplace: bool = False) -> Value:
    return where(compare(">", a, number(a.trace, 0)), a, multiply(a, number(a.trace, negative_slope)))


def elu(a: Value, alpha: Any = 1.0, inplace: bool = False) -> Value:
    return where(compare(">", a, number(a.trace, 0)), a, multiply(expm1(a), number(a.trace, alpha)))


def hardtanh(a: Value, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False) -> Value:
    return clamp(a, number(a.trace, min_val), number(a.trace, max_val))


def relu6(a: Value, inplace: bool = False) -> Value:
    return hardtanh(a, 0.0, 6.0)


def logsigmoid(a: Value) -> Value:
    return subtract(minimum(a, number(a.trace, 0.0)), log1p(exp(negative(absolute(a)))))


def gelu(a: Value, *, approximate: str = "none") -> Value:
    if approximate != "tanh":
        a.trace.fail(f'`gelu` with approximate="{approximate}" (write approximate="tanh")')
    inner = multiply(
        add(a, scaled(lambda x: multiply(x, square(x)), 0.044715)(a)), number(a.trace, math.sqrt(2 / math.pi))
    )
    return _half(multiply(a, add(number(a.trace, 1.0), tanh(inner))))


def round_half_to_even(a: Value, *, decimals: int = 0) -> Value:
    if decimals != 0:
        a.trace.fail(f"`round` with decimals={decimals}")
    if a.kind != "real":
        return a
    down, half = floor(a), number(a.trace, 0.5)
    up, rest = add(down, number(a.trace, 1.0)), subtract(a, down)
    even = compare("==", multiply(floor(_half(down)), number(a.trace, 2.0)), down)
    return where(logical_or(compare("<", rest, half), logical_and(compare("==", rest, half), even)), down, up)


def frac(a: Value) -> Value:
    return subtract(a, trunc(a))


def isnan(a: Value) -> Value:
    return compare("!=", a, a) if a.kind == "real" else number(a.trace, False)


def isinf(a: Value) -> Value:
    return compare("==", absolute(a), number(a.trace, math.inf)) if a.kind == "real" else number(a.trace, False)


def isfinite(a: Value) -> Value:
    return compare("<", absolute(a), number(a.trace, math.inf)) if a.kind == "real" else number(a.trace, True)


def nan_to_num(a: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Value:
    if a.kind != "real":
        return a
    infinity, limits = number(a.trace, math.inf), torch.finfo(a.dtype)
    for condition, given, default in (
        (compare("==", a, infinity), posinf, limits.max),
        (compare("==", a, negative(infinity)), neginf, limits.min),
        (isnan(a), nan, 0.0),
    ):
        a = where(condition, number(a.trace, float(default if given is None else given)), a)
    return a


def logaddexp(a: Value, b: Value) -> Value:
    most = maximum(a, b)
    most = where(isinf(most), number(a.trace, 0.0), most)
    return add(most, log(add(exp(subtract(a, most)), exp(subtract(b, most)))))


def lerp(a: Value, end: Value, weight: Value) -> Value:
    return add(a, multiply(weight, subtract(end, a)))


def shifted(up: bool) -> Callable[[Value, Value], Value]:
    """An integer to the left or, rounding down, to the right by a number of bits."""

    def shift(a: Value, bits: Value) -> Value:
        by = literal(bits)
        if a.kind != "int" or by is None or not 0 <= by < 31:
            raise a.trace.failure("a shift that is not of an integer by a number from 0 to 30")
        power = number(a.trace, 2 ** int(by))
        return multiply(a, power) if up else floor_divide(a, power)

    return shift


def bits_in_both(a: Value, b: Value) -> Value | None:
    """a & b of an integer and a number that is not negative, a run of the number's bits at a time; None of others."""
    a, mask = (b, a) if literal(a) is not None else (a, b)
    bits = literal(mask)
    if a.kind == "real" or bits is None or bits < 0:
        return None
    bits, first, result = int(bits), 0, number(a.trace, 0)
    a = to_integer(a)
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits, first = bits >> skipped, first + skipped
        count = (~bits & (bits + 1)).bit_length() - 1
        run = remainder(shifted(up=False)(a, number(a.trace, first)) if first else a, number(a.trace, 1 << count))
        run = multiply(run, number(a.trace, 1 << first)) if first else run
        result = run if literal(result) == 0 else add(result, run)
        bits, first = bits >> count, first + count
    return result
