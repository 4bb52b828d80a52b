# SPDX-License-Identifier: Apache-2.0
"""Which module of the Python package may import which: no circles, and layers. Imports inside functions count.

`make lint` runs it; tests/lint/import_rules_test.py tests it.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# Modules, packages with all that is in them, and what they may import: their own kind, and the layers below.
LAYERS = (
    ("strobe.integrations", "strobe.__main__"),
    ("strobe",),  # the public names
    ("strobe._mla", "strobe._shared_prefix"),
    ("strobe._append", "strobe._attention", "strobe._masks", "strobe._merge", "strobe._quantize", "strobe._sparse"),
    ("strobe.torch", "strobe.jax"),
    ("strobe._few_queries",),
    ("strobe._appended", "strobe._forward", "strobe._mask_argument", "strobe._quantized", "strobe._sparse_source"),
    ("strobe._frameworks",),
    ("strobe._documented", "strobe._expressions", "strobe._query_values", "strobe._row_format"),
    ("strobe._option_list", "strobe._shapes", "strobe._threads"),
    ("strobe._core",),  # C++; its stub names the types of options
    ("strobe._options",),
)
_LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}


def unit_of(module):
    """The entry of LAYERS that has the module; None if no entry does."""
    if module == "strobe":
        return module
    return next((name for name in _LAYER_OF if name != "strobe" and f"{module}.".startswith(f"{name}.")), None)


def modules_of(folder):
    """Path of each module of the package in `folder`, by its name; stubs stand for modules in C++."""
    paths = (path for suffix in ("py", "pyi") for path in sorted((folder / "strobe").rglob(f"*.{suffix}")))
    parts = ((path, path.relative_to(folder).with_suffix("").parts) for path in paths)
    return {".".join(names[:-1] if names[-1] == "__init__" else names): path for path, names in parts}


def imports_of(path, module, modules):
    """The modules that a module imports, anywhere in its code, with the packages that they are in and it is not."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names}
    packages = {name[:at] for name in names for at, letter in enumerate(name) if letter == "."}
    names |= {package for package in packages if not f"{module}.".startswith(f"{package}.")}
    return names & modules.keys() - {module}


def check_imports(folder):
    """Complaints about the package that lies in `folder`."""
    modules = modules_of(Path(folder))
    graph = {module: imports_of(path, module, modules) for module, path in modules.items()}
    complaints = []
    for module in sorted(graph):
        layer = _LAYER_OF.get(unit_of(module))
        if layer is None:
            complaints.append(f"{module}: belongs to no layer of scripts/import_rules.py\n")
            continue
        complaints += [
            f"{module}: imports {imported}, which is not in a layer below\n"
            for imported in sorted(graph[module])
            if unit_of(imported) != unit_of(module) and _LAYER_OF.get(unit_of(imported), -1) <= layer
        ]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        complaints.append(f"a circle of imports: {' -> '.join(reversed(error.args[1]))}\n")
    return complaints
