# SPDX-License-Identifier: Apache-2.0
"""What eager calls leave to the library, said in the same words where PyTorch meets the arguments first."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strobe import _core
from strobe._option_list import OPTIONS, Kind
from strobe._shapes import wrong_type

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, np.number, Tensor)
_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
_INTEGERS = (int, torch.SymInt, np.integer, Tensor)


def check_types(**tensors: Any) -> None:
    """TypeError for what is no tensor of PyTorch."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise wrong_type(name, tensor, "a torch.Tensor; strobe.attention takes tensors of other frameworks")


def check_layouts(**tensors: Tensor) -> None:
    """ValueError for a tensor whose memory is not described by strides, or that has no axes."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_nested:
            layout = "of nested tensors" if tensor.is_nested else tensor.layout
            raise ValueError(f"{name} has the layout {layout}: it must be dense, torch.strided")
        if tensor.dim() == 0:
            raise ValueError(f"{name} has rank 0: tensors of a call have rank 1 to 4")


def check_meta(**tensors: Tensor) -> None:
    """ValueError for a tensor that has elements, beside a q that has none."""
    for name, tensor in tensors.items():
        if not tensor.is_meta:
            raise ValueError(f"{name} is on {tensor.device} and q on meta: all tensors must be on one device")


def check_dtypes(**tensors: Tensor) -> None:
    """ValueError for what no engine computes, before a compiler has gone on; eager calls leave it to the library."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(f"{name} is {dtype}: it must be float32, float16 or bfloat16")


def tensors_of(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Tensor]:
    """The options of these names that are given. NumPy's arrays are taken, as eager calls take them."""
    given = {name: options[name] for name in names if name in options}
    given = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    check_types(**given)
    return given


_TYPES: dict[Kind, tuple[Any, str]] = {
    "number": (_NUMBERS, "a number"),
    "integer": (_INTEGERS, "an integer"),
    "flag": ((bool, np.bool_), "True or False"),
}


def check_values(options: Mapping[str, Any]) -> None:
    """TypeError for numbers, integers and flags of another type."""
    for name, value in options.items():
        types, accepted = _TYPES.get(OPTIONS[name].kind, (object, ""))
        if not isinstance(value, types) or (isinstance(value, bool) and types in (_NUMBERS, _INTEGERS)):
            raise wrong_type(name, value, accepted)


def check_texts(options: Mapping[str, Any]) -> None:
    """TypeError for a score or a mask that is no text."""
    for name in ("score", "mask_text"):
        if name in options and not isinstance(options[name], str):
            raise wrong_type(name, options[name], "text, or a strobe.ScoreFunction")


def check_normalize(options: Mapping[str, Any]) -> None:
    """What strobe._core says of another value, before a compiler has gone on."""
    accepted = '"softmax" or "none"'
    value = options.get("normalize", "softmax")
    if not isinstance(value, str):
        raise wrong_type("normalize", value, accepted)
    if value not in ("softmax", "none"):
        raise ValueError(f'normalize is "{value}": it must be {accepted}')


def window_of(options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Left and right; -1 and -1 where none is given."""
    window = options.get("window", (-1, -1))
    if not isinstance(window, (tuple, list)):
        raise wrong_type("window", window, "a pair of integers (left, right)")
    if len(window) != 2:
        raise ValueError(f"window has {len(window)} values: it must be a pair of integers (left, right)")
    for side in window:
        if not isinstance(side, _INTEGERS) or isinstance(side, bool):
            raise wrong_type("window", side, "an integer")
    return window[0], window[1]


def causal_of(options: Mapping[str, Any]) -> str:
    """As the operators spell it."""
    causal = options.get("causal", False)
    if isinstance(causal, (bool, np.bool_)):
        return "bottom_right" if causal else "none"
    if not isinstance(causal, str):
        raise wrong_type("causal", causal, 'True, False, "bottom_right" or "top_left"')
    if causal not in ("bottom_right", "top_left"):
        raise ValueError(f'causal is "{causal}": it must be True, False, "bottom_right" or "top_left"')
    return causal


def word(name: str, value: Any) -> int:
    """The value, from 0 to 2^64 - 1, as the int64 of the same bits.

    What strobe._core.unsigned_integer says of others; but that no compiler looks into.
    """
    if not torch.compiler.is_compiling():
        value = _core.unsigned_integer(name, value)
    if isinstance(value, np.ndarray) and value.ndim == 0:  # what compilers take NumPy's scalars for
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        return _word_of(name, value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, value, "an integer")
    if value < 0 or value >= 2**64:
        raise ValueError(f"{name} is {value}: it must be from 0 to 2^64 - 1")
    return value - 2**64 if value >= 2**63 else value


def _word_of(name: str, tensor: Tensor) -> int:
    """The same of a tensor, whose value a compiler does not know."""
    if tensor.numel() != 1 or tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise wrong_type(name, tensor, "an integer")
    if tensor.dtype == torch.uint64:
        return int(tensor.view(torch.int64))
    number = int(tensor)
    torch._check(number >= 0, lambda: f"{name} is negative: it must be from 0 to 2^64 - 1")
    return number
