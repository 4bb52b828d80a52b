# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's operations do to traced values; functions.py has their names."""

import math
from collections.abc import Callable
from typing import Any

import torch

from strobe.torch.flex.values import (
    AND,
    ATOM,
    CHOICE,
    COMPARISON,
    EQUALITY,
    OR,
    PRODUCT,
    SIGN,
    SUM,
    Kind,
    Value,
    is_finite,
    number,
)

_REALS = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})
_INTEGERS = frozenset({torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8})


def kind_of_dtype(dtype: torch.dtype) -> Kind | None:
    if dtype in _REALS:
        return "real"
    if dtype in _INTEGERS:
        return "int"
    return "bool" if dtype == torch.bool else None


def _joined(symbol: str, binding: int, a: Value, b: Value, kind: Kind, bounds: tuple[float, float]) -> Value:
    return Value(a.trace, f"{a.within(binding)} {symbol} {b.within(binding + 1)}", binding, kind, *bounds)


_UNBOUNDED = (-math.inf, math.inf)


def _promoted(a: Value, b: Value) -> Kind:
    return "real" if "real" in (a.kind, b.kind) else "int"


def literal(value: Value) -> float | None:
    """Of an integer that is one."""
    return value.low if value.kind == "int" and value.low == value.high else None


def _times(x: float, y: float) -> float:
    return 0.0 if 0.0 in (x, y) else x * y


def _hull(*values: float) -> tuple[float, float]:
    return min(values), max(values)


def add(a: Value, b: Value, *, alpha: Any = 1) -> Value:
    if alpha != 1:
        b = multiply(b, number(b.trace, alpha))
    if a.kind == b.kind == "bool":
        return logical_or(a, b)
    return _joined("+", SUM, a, b, _promoted(a, b), (_low(a) + _low(b), _high(a) + _high(b)))


def subtract(a: Value, b: Value, *, alpha: Any = 1) -> Value:
    if alpha != 1:
        b = multiply(b, number(b.trace, alpha))
    return _joined("-", SUM, a, b, _promoted(a, b), (_low(a) - _high(b), _high(a) - _low(b)))


def multiply(a: Value, b: Value) -> Value:
    if a.kind == b.kind == "bool":
        return logical_and(a, b)
    bounds = _hull(*(_times(x, y) for x in (_low(a), _high(a)) for y in (_low(b), _high(b))))
    return _joined("*", PRODUCT, a, b, _promoted(a, b), bounds)


def _low(value: Value) -> float:
    return 0.0 if value.kind == "bool" else value.low


def _high(value: Value) -> float:
    return 1.0 if value.kind == "bool" else value.high


def divide(a: Value, b: Value, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode == "trunc":
        return truncating_divide(a, b)
    if rounding_mode is not None:
        a.trace.fail(f'division with rounding_mode="{rounding_mode}"')
    if "real" not in (a.kind, b.kind):
        a, b = to_real(a), to_real(b)
    return _joined("/", PRODUCT, a, b, "real", _UNBOUNDED)


def floor_divide(a: Value, b: Value) -> Value:
    if "real" in (a.kind, b.kind):
        return floor(divide(a, b))
    by = literal(b)
    bounds = _UNBOUNDED
    if by is not None and by > 0:  # infinities divided by integers are nan
        bounds = (
            _low(a) // by if is_finite(_low(a)) else _low(a),
            _high(a) // by if is_finite(_high(a)) else _high(a),
        )
    return _joined("/", PRODUCT, to_integer(a), to_integer(b), "int", bounds)


def truncating_divide(a: Value, b: Value) -> Value:
    """Towards 0."""
    if "real" in (a.kind, b.kind):
        return trunc(divide(a, b))
    quotient = floor_divide(a, b)
    return quotient if _signs_agree(a, b) else add(quotient, to_integer(_is_below(a, b)))


def fmod(a: Value, b: Value) -> Value:
    """With the sign of the dividend, as in C."""
    if "real" in (a.kind, b.kind):
        return subtract(a, multiply(truncating_divide(a, b), b))
    rest = remainder(a, b)
    return rest if _signs_agree(a, b) else where(_is_below(a, b), subtract(rest, b), rest)


def _signs_agree(a: Value, b: Value) -> bool:
    return _low(a) >= 0 and _low(b) >= 0


def _is_below(a: Value, b: Value) -> Value:
    """Whether an integer quotient that is rounded down is not the one that is rounded towards 0."""
    zero = number(a.trace, 0)
    opposite = logical_xor(compare("<", a, zero), compare("<", b, zero))
    return logical_and(compare("!=", remainder(a, b), zero), opposite)


def remainder(a: Value, b: Value) -> Value:
    """With the sign of the divisor, as in Python."""
    if "real" in (a.kind, b.kind):
        return subtract(a, multiply(floor_divide(a, b), b))
    by = literal(b)
    bounds = (0.0, by - 1) if by is not None and by > 0 else _UNBOUNDED
    return _joined("%", PRODUCT, to_integer(a), to_integer(b), "int", bounds)


_MOST_FACTORS = 8
_LARGEST_POWER = 1e38  # of float32


def power(a: Any, b: Any) -> Value:
    """A traced value to the power of a number, or a positive number to that of a traced value."""
    if not isinstance(b, Value):
        if a.kind != "real" and isinstance(b, int) and 0 < b <= _MOST_FACTORS:
            result = to_integer(a)
            for _ in range(b - 1):
                result = multiply(result, to_integer(a))
            return result
        return _call("pow", "real", a, number(a.trace, b))
    if isinstance(a, Value):
        b.trace.fail("a traced value to the power of another")
    if a <= 0:
        b.trace.fail(f"{a} to the power of a traced value")
    if isinstance(a, int) and b.kind != "real":
        return _power_of_integer(a, to_integer(b))
    return _call("exp2", "real", b) if a == 2 else exp(multiply(b, number(b.trace, math.log(a))))


def _power_of_integer(base: int, exponent: Value) -> Value:
    """An integer where 32 bits hold all that it may be, else a real: a factor for each bit of the exponent.

    Of a negative exponent PyTorch makes 0.
    """
    trace, high = exponent.trace, _high(exponent)
    if base == 1:
        return number(trace, 1)
    kind = int if high < 32 and base ** int(high) < 2**31 else float
    zero, one, two = (number(trace, x) for x in (0, 1, 2))
    result, power, bit = number(trace, kind(1)), base, 1
    while bit <= high and power < _LARGEST_POWER:
        digit = remainder(floor_divide(exponent, number(trace, bit)), two)
        factor = where(compare("==", digit, one), number(trace, kind(power)), number(trace, kind(1)))
        result = factor if bit == 1 else _joined("*", PRODUCT, result, factor, factor.kind, _UNBOUNDED)
        power, bit = power * power, 2 * bit
    if bit <= high:
        result = where(compare("<", exponent, number(trace, bit)), result, number(trace, math.inf))
    if _low(exponent) < 0:
        result = where(compare("<", exponent, zero), number(trace, kind(0)), result)
    bounds = (0, base ** int(high)) if kind is int and high >= 0 else _UNBOUNDED
    return Value(trace, result.text, result.binding, result.kind, *bounds)


def negative(a: Value) -> Value:
    kind: Kind = "real" if a.kind == "real" else "int"
    return Value(a.trace, f"-{a.within(ATOM)}", SIGN, kind, -_high(a), -_low(a))


def _call(name: str, kind: Kind, *values: Value, bounds: tuple[float, float] = _UNBOUNDED) -> Value:
    text = ", ".join(value.within(CHOICE) for value in values)
    return Value(values[0].trace, f"{name}({text})", ATOM, kind, *bounds)


def function(name: str) -> Callable[[Value], Value]:
    """One of reals, which integers become."""
    return lambda a: _call(name, "real", a)


exp = function("exp")
log = function("log")


def absolute(a: Value) -> Value:
    kind: Kind = "real" if a.kind == "real" else "int"
    inner = 0.0 if _low(a) <= 0 <= _high(a) else min(abs(_low(a)), abs(_high(a)))
    return _call("abs", kind, a, bounds=(inner, max(abs(_low(a)), abs(_high(a)))))


def floor(a: Value) -> Value:
    return _call("floor", "real", a) if a.kind == "real" else a


def ceil(a: Value) -> Value:
    return negative(floor(negative(a))) if a.kind == "real" else a


def trunc(a: Value) -> Value:
    return where(compare("<", a, number(a.trace, 0)), ceil(a), floor(a)) if a.kind == "real" else a


def maximum(a: Value, b: Value) -> Value:
    bounds = max(_low(a), _low(b)), max(_high(a), _high(b))
    return _call("max", _promoted(a, b), a, b, bounds=bounds)


def minimum(a: Value, b: Value) -> Value:
    bounds = min(_low(a), _low(b)), min(_high(a), _high(b))
    return _call("min", _promoted(a, b), a, b, bounds=bounds)


def clamp(a: Value, min: Value | None = None, max: Value | None = None) -> Value:
    a = a if min is None else maximum(a, min)
    return a if max is None else minimum(a, max)


def compare(symbol: str, a: Value, b: Value) -> Value:
    binding = EQUALITY if symbol in ("==", "!=") else COMPARISON
    return _joined(symbol, binding, a, b, "bool", _UNBOUNDED)


def comparison(symbol: str) -> Callable[[Value, Value], Value]:
    return lambda a, b: compare(symbol, a, b)


def to_real(a: Value) -> Value:
    if a.kind == "real":
        return a
    known = literal(a)
    return number(a.trace, float(known)) if known is not None else _call("float", "real", a)


def to_integer(a: Value) -> Value:
    """Towards 0."""
    if a.kind == "int":
        return a
    return _call("int", "int", a, bounds=(0.0, 1.0) if a.kind == "bool" else _UNBOUNDED)


def to_boolean(a: Value) -> Value:
    if (known := literal(a)) is not None:
        return number(a.trace, known != 0)
    return a if a.kind == "bool" else compare("!=", a, number(a.trace, 0))


def logical_and(a: Value, b: Value) -> Value:
    a, b = to_boolean(a), to_boolean(b)
    if a.text == "true":
        return b
    return a if b.text == "true" else _joined("&&", AND, a, b, "bool", _UNBOUNDED)


def logical_or(a: Value, b: Value) -> Value:
    a, b = to_boolean(a), to_boolean(b)
    if a.text == "false":
        return b
    return a if b.text == "false" else _joined("||", OR, a, b, "bool", _UNBOUNDED)


def logical_not(a: Value) -> Value:
    return Value(a.trace, f"!{to_boolean(a).within(ATOM)}", SIGN, "bool")


def logical_xor(a: Value, b: Value) -> Value:
    return compare("!=", to_boolean(a), to_boolean(b))


def of_booleans(operation: Callable[..., Value], symbol: str) -> Callable[..., Value]:
    def checked(*values: Value) -> Value:
        for value in values:
            if value.kind != "bool":
                value.trace.fail(f"`{symbol}` of integers, where none is a number without a sign")
        return operation(*values)

    return checked


def where(condition: Value, yes: Value, no: Value) -> Value:
    condition = to_boolean(condition)
    if {yes.kind, no.kind} != {"bool"}:
        yes, no = (to_integer(x) if x.kind == "bool" else x for x in (yes, no))
    kind: Kind = yes.kind if yes.kind == no.kind else _promoted(yes, no)
    bounds = min(yes.low, no.low), max(yes.high, no.high)
    text = f"{condition.within(OR)} ? {yes.within(CHOICE)} : {no.within(CHOICE)}"
    return Value(condition.trace, text, CHOICE, kind, *bounds)


def masked_fill(a: Value, mask: Value, value: Value) -> Value:
    return where(mask, value, to_real(a) if value.kind == "real" else a)
