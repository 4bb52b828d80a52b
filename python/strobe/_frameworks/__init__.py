# SPDX-License-Identifier: Apache-2.0
"""What calls ask of the framework of their tensors: a module for each, which is loaded with its first tensor.

strobe.torch and strobe.jax, which have gradients, are built on these and on the calls without gradients.
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from strobe._frameworks.base import Framework
from strobe._frameworks.numpy import NumPy

__all__ = ["Framework", "check_outputs", "framework_of", "mark_written"]


@cache
def _torch() -> Framework:
    from strobe._frameworks.torch import Torch

    return Torch()


@cache
def _jax() -> Framework:
    from strobe._frameworks.jax import Jax

    return Jax()


@cache
def _cupy() -> Framework:
    from strobe._frameworks.cupy import CuPy

    return CuPy()


_ANY = Framework()
_NUMPY = NumPy()
# By the module that has it: the name of the framework's type of tensors, and what loads the module of this package.
_FRAMEWORKS: dict[str, tuple[str, Callable[[], Framework]]] = {
    "torch": ("Tensor", _torch),
    "jax": ("Array", _jax),
    "cupy": ("ndarray", _cupy),
}
_by_type: dict[type, Framework] = {np.ndarray: _NUMPY}  # what was found so far


def framework_of(tensor: Any) -> Framework:
    """The framework whose tensor this is; one without a name for any other object."""
    return _by_type.get(type(tensor)) or _find(tensor)


def _find(tensor: Any) -> Framework:
    if isinstance(tensor, np.ndarray):
        return _NUMPY
    for name, (tensor_type, load) in _FRAMEWORKS.items():
        module = sys.modules.get(name)  # a framework that is not loaded made no tensor
        if module is not None and isinstance(tensor, getattr(module, tensor_type, ())):
            framework = _by_type[type(tensor)] = load()
            return framework
    return _ANY


def check_outputs(**outputs: Any) -> None:
    """ValueError for a tensor that requires a gradient, which what is written to it would not have."""
    for name, output in outputs.items():
        framework_of(output).reject_gradients("what is written to it does not have: detach it", **{name: output})


def mark_written(*outputs: Any) -> None:
    """Tells frameworks that a call has written to the caller's tensors."""
    for output in outputs:
        framework_of(output).mark_written(output)
