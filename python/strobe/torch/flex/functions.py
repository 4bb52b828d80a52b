# SPDX-License-Identifier: Apache-2.0
"""The operations on traced values by the names of PyTorch's functions, methods and operators."""

import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from strobe.torch.flex.composed import (
    bits_in_both,
    cosh,
    elu,
    expm1,
    frac,
    gelu,
    hardtanh,
    isfinite,
    isinf,
    isnan,
    leaky_relu,
    lerp,
    log1p,
    logaddexp,
    logsigmoid,
    nan_to_num,
    reciprocal,
    relu,
    relu6,
    round_half_to_even,
    scaled,
    shifted,
    sign,
    silu,
    sinh,
    softplus,
    square,
    tan,
)
from strobe.torch.flex.conversions import (
    detached,
    filled,
    like,
    new_tensor,
    same,
    shaped,
    size,
    to,
    typed,
)
from strobe.torch.flex.operations import (
    absolute,
    add,
    ceil,
    clamp,
    comparison,
    divide,
    exp,
    floor,
    floor_divide,
    fmod,
    function,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    masked_fill,
    maximum,
    minimum,
    multiply,
    negative,
    of_booleans,
    power,
    remainder,
    subtract,
    to_boolean,
    to_integer,
    to_real,
    trunc,
    where,
)
from strobe.torch.flex.values import Part, Row, Value, number

LITERAL_ARGUMENTS = frozenset(
    {"pow", "rpow", "new_ones", "new_zeros", "new_full", "full_like", "to"}
    | {"softplus", "leaky_relu", "elu", "hardtanh", "gelu", "nan_to_num", "round"}
    | {"type", "type_as", "new_tensor", "view", "reshape", "size"}
)
"""Operations that read their arguments as Python's values."""


def bitwise_and(a: Value, b: Value) -> Value:
    """Of booleans, or of an integer and a number."""
    both = bits_in_both(a, b)
    return of_booleans(logical_and, "&")(a, b) if both is None else both


def bitwise_or(a: Value, b: Value) -> Value:
    both = bits_in_both(a, b)
    return of_booleans(logical_or, "|")(a, b) if both is None else subtract(add(a, b), both)


def bitwise_xor(a: Value, b: Value) -> Value:
    both = bits_in_both(a, b)
    if both is None:
        return of_booleans(logical_xor, "^")(a, b)
    return subtract(add(a, b), multiply(both, number(a.trace, 2)))


def chosen(condition: Value, input: Value | None = None, other: Value | None = None, **names: Value) -> Value:
    """torch.where, for which a number that is chosen where the condition holds is `self`, and a tensor `input`."""
    yes = names.pop("self", input)
    if names or yes is None or other is None:
        raise condition.trace.failure("torch.where of other arguments than a condition and two values")
    return where(condition, yes, other)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": add,
    "radd": lambda a, b: add(b, a),
    **dict.fromkeys(("sub", "subtract"), subtract),
    **dict.fromkeys(("mul", "multiply"), multiply),
    "rmul": lambda a, b: multiply(b, a),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), divide),
    **dict.fromkeys(("floor_divide", "floordiv"), floor_divide),
    **dict.fromkeys(("remainder", "mod"), remainder),
    "rsub": lambda a, b, *, alpha=1: subtract(b, a, alpha=alpha),
    **dict.fromkeys(("rdiv", "rtruediv"), lambda a, b: divide(b, a)),
    "rfloordiv": lambda a, b: floor_divide(b, a),
    "rmod": lambda a, b: remainder(b, a),
    "fmod": fmod,
    "pow": power,
    "rpow": lambda a, b: power(b, a),
    **dict.fromkeys(("neg", "negative"), negative),
    **dict.fromkeys(("pos", "positive", "contiguous", "clone", "squeeze"), same),
    **dict.fromkeys(("abs", "absolute"), absolute),
    **{name: function(name) for name in ("exp2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos")},
    "exp": exp,
    "log": log,
    "log2": scaled(log, 1 / math.log(2)),
    "log10": scaled(log, 1 / math.log(10)),
    "log1p": log1p,
    "expm1": expm1,
    "tan": tan,
    "floor": floor,
    "ceil": ceil,
    **dict.fromkeys(("trunc", "fix"), trunc),
    "round": round_half_to_even,
    "frac": frac,
    "isnan": isnan,
    "isinf": isinf,
    "isfinite": isfinite,
    "nan_to_num": nan_to_num,
    "logaddexp": logaddexp,
    "square": square,
    "reciprocal": reciprocal,
    "relu": relu,
    "silu": silu,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "hardtanh": hardtanh,
    "gelu": gelu,
    "softplus": softplus,
    "logsigmoid": logsigmoid,
    "sinh": sinh,
    "cosh": cosh,
    "lerp": lerp,
    **dict.fromkeys(("sign", "sgn"), sign),
    **dict.fromkeys(("maximum", "max", "fmax", "clamp_min"), maximum),
    **dict.fromkeys(("minimum", "min", "fmin", "clamp_max"), minimum),
    **dict.fromkeys(("clamp", "clip"), clamp),
    **dict.fromkeys(("lt", "less"), comparison("<")),
    **dict.fromkeys(("le", "less_equal"), comparison("<=")),
    **dict.fromkeys(("gt", "greater"), comparison(">")),
    **dict.fromkeys(("ge", "greater_equal"), comparison(">=")),
    "eq": comparison("=="),
    **dict.fromkeys(("ne", "not_equal"), comparison("!=")),
    "logical_and": logical_and,
    "logical_or": logical_or,
    "logical_not": logical_not,
    "logical_xor": logical_xor,
    **dict.fromkeys(("and", "rand", "bitwise_and"), bitwise_and),
    **dict.fromkeys(("or", "ror", "bitwise_or"), bitwise_or),
    **dict.fromkeys(("xor", "rxor", "bitwise_xor"), bitwise_xor),
    **dict.fromkeys(("invert", "bitwise_not"), of_booleans(logical_not, "~")),
    **dict.fromkeys(("lshift", "bitwise_left_shift"), shifted(up=True)),
    **dict.fromkeys(("rshift", "bitwise_right_shift"), shifted(up=False)),
    "rlshift": lambda a, b: shifted(up=True)(b, a),
    "rrshift": lambda a, b: shifted(up=False)(b, a),
    "where": chosen,
    "Tensor.where": lambda self, condition, other: where(condition, self, other),
    "masked_fill": masked_fill,
    **dict.fromkeys(("to", "type_as"), to),
    "type": typed,
    "new_tensor": new_tensor,
    **dict.fromkeys(("view", "reshape"), shaped),
    "detach": detached,
    "size": size,
    **dict.fromkeys(("dim", "ndimension"), lambda a: 0),
    **dict.fromkeys(("numel", "nelement"), lambda a: 1),
    "is_floating_point": lambda a: a.kind == "real",
    **dict.fromkeys(("float", "half", "bfloat16", "double"), to_real),
    **dict.fromkeys(("int", "long", "short"), to_integer),
    "bool": to_boolean,
    "new_ones": filled(1),
    "new_zeros": filled(0),
    "new_full": filled(None),
    "ones_like": like(1),
    "zeros_like": like(0),
    "full_like": like(None),
}

_PRECOMPUTED = "compute the result for every position before the call, and index that by the position"
REMEDIES = {
    **dict.fromkeys(("searchsorted", "bucketize"), _PRECOMPUTED),
    **dict.fromkeys(("index_select", "gather", "take"), "index the tensor in brackets"),
    "isin": "compare with each number, and join by |",
    "erf": 'gelu has approximate="tanh", without it',
    **dict.fromkeys(("sum", "any", "all", "cumsum"), "a traced value is one number, of one query and key"),
}
"""What to write instead of functions that texts lack."""

METHODS = {"where": "Tensor.where"}
"""Methods that take their arguments in another order than the function of their name, by the name of the operation."""

BY_NAME = frozenset({"where", "Tensor.where"})
"""Operations whose parameters have PyTorch's names. Of others `input` is the first argument and `other` the last."""


_OWNERS = (torch, torch.Tensor, torch.nn.functional, torch.special, torch.linalg, operator)


def _names() -> dict[Any, str]:
    """PyTorch's functions, and Python's operators, by their own names here; compilers know them as objects alone."""
    names: dict[Any, str] = {}
    for name in (*OPERATIONS, "getitem", "setitem"):
        for owner in _OWNERS:
            for attribute in (name, f"__{name}__"):
                function = getattr(owner, attribute, None)
                if callable(function) and not isinstance(function, type):
                    names[function] = name
    names |= {getattr(torch.Tensor, name): operation for name, operation in METHODS.items()}
    return names


def _other_names() -> dict[Any, str]:
    """The rest of PyTorch's functions, by name."""
    kinds = tuple({type(x) for x in (torch.erf, torch.Tensor.erf_, torch.Tensor.__contains__)})
    pairs = ((getattr(owner, name, None), name) for owner in _OWNERS for name in dir(owner))
    return {function: _plain(name) for function, name in pairs if isinstance(function, kinds)}


def _plain(name: str) -> str:
    return name.strip("_") if name.endswith("__") else name


_NAMES = _names()
_OTHER_NAMES = _other_names()


def name_of(function: Any) -> str:
    """The operation that a function of PyTorch is, or its own name."""
    name = _NAMES.get(function)
    if name is None:
        name = _OTHER_NAMES.get(function)
    if name is None and not torch.compiler.is_compiling():
        name = _plain(getattr(function, "__name__", str(function)))
    return name or "a function"


def _operator(name: str) -> Callable[..., Any]:
    return lambda *values: values[0].trace.operate(name, values, {})


def _no_number(name: str) -> Callable[..., Any]:
    def fail(part: Part | Row) -> NoReturn:
        raise part.failure(f"`{name}`")

    return fail


for _name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
    *("pow", "rpow", "neg", "pos", "abs", "invert", "and", "rand", "or", "ror", "xor", "rxor", "round"),
    *("lshift", "rlshift", "rshift", "rrshift", "divmod", "rdivmod", "matmul", "rmatmul"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
):
    for _kind in (Value, Part, Row):
        setattr(_kind, f"__{_name}__", _operator(_name))
for _name in ("bool", "int", "float", "index"):
    for _kind in (Part, Row):
        setattr(_kind, f"__{_name}__", _no_number(_name))
