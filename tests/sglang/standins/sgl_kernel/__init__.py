# SPDX-License-Identifier: Apache-2.0
"""Stands for SGLang's package of kernels, whose build for CPUs is not published: its modules import names of it.

A name may be imported, of this package and of any module in it, and is an error once it is called.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


class Absent:
    """What a module of this package has under any name."""

    def __init__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        self._name = name

    def __getattr__(self, name: str) -> "Absent":
        return Absent(name)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel's {self._name} was called: SGLang's kernels are not installed")


class Modules(MetaPathFinder, Loader):
    """Finds every module of this package."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith(f"{__name__}.") else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = Absent


__getattr__ = Absent
sys.meta_path.append(Modules())
