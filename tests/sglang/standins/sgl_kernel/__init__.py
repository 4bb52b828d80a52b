# SPDX-License-Identifier: Apache-2.0
"""Stands for SGLang's package of kernels, whose build for CPUs is not published: its modules import names of it.

A name may be imported, and is an error once it is called.
"""

from collections.abc import Callable
from typing import Any


def absent(name: str) -> Callable[..., Any]:
    """What a module of this package has under any name."""
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"sgl_kernel's {name} was called: SGLang's kernels for CPUs are not installed")

    return kernel


__getattr__ = absent
