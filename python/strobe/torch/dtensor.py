# SPDX-License-Identifier: Apache-2.0
"""Says how the operators take DTensors as soon as there can be one: what they are takes PyTorch 0.2 s to load."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_MODULE = "torch.distributed.tensor"


class _Finder(MetaPathFinder):
    """Finds PyTorch's module as others do, and has the operators registered when it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            _register()

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def _register() -> None:
    from strobe.torch import sharding  # noqa: F401 (it registers what it holds)


def register_when_loaded() -> None:
    """Now, or when PyTorch loads DTensors."""
    if _MODULE in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())
