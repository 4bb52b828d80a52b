# SPDX-License-Identifier: Apache-2.0
"""The packages beside Strobe's own, drop-ins for flash-attn and backends of serving engines, as files.

They import PyTorch, vLLM or SGLang, which may be missing where they are checked. So their syntax trees are read, and
none of them is imported.
"""

import ast
from pathlib import Path

# Of each distribution its package, and the entry points by which an engine finds it.
COMPANIONS = {
    "strobe-flash-attn": ("flash_attn", {}),
    "strobe-flash-attn-interface": ("flash_attn_interface", {}),
    "strobe-sglang": ("strobe_sglang", {"sglang.srt.plugins": {"strobe": "strobe_sglang:register"}}),
    "strobe-vllm": ("strobe_vllm", {"vllm.general_plugins": {"strobe": "strobe_vllm:register"}}),
}


def file_of(module: str, folders: list[Path]) -> Path | None:
    """The file of a module by its dotted name, in the first of the folders that has it."""
    for folder in folders:
        path = folder.joinpath(*module.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py"), path.with_suffix(".pyi")):
            if file.is_file():
                return file
    return None


def statements(nodes: list[ast.stmt]):
    """Statements that run when a module is imported, those below a condition among them."""
    for node in nodes:
        yield node
        for field in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.ExceptHandler | ast.With):
                yield from statements(getattr(node, field, []))


def strings(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def names_of(file: Path) -> set[str]:
    """The names that a module has. With a function `__getattr__` its strings and those of `__all__` are names, too."""
    names, lazy, listed = set(), set(), set()
    for node in statements(ast.parse(file.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            lazy |= strings(node) if node.name == "__getattr__" else set()
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            if "__all__" in names and not listed:
                listed = strings(node)
    return names | lazy | (listed if lazy else set())


def has(module: str, name: str, folders: list[Path]) -> bool:
    """Whether `from module import name` would find something: a module, or a name of one."""
    file = file_of(module, folders)
    return file is not None and (name in names_of(file) or file_of(f"{module}.{name}", folders) is not None)


def imported(file: Path, packages: set[str]):
    """(module, name) of everything that a file imports from the packages, in functions, too; name is "" of a module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            wanted = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        yield from ((module, name) for module, name in wanted if module.partition(".")[0] in packages)


def missing(package: str, folders: list[Path]) -> list[str]:
    """What a package's files import from it and from Strobe, or name to an engine as package.module.Class, that is not
    in the folders."""
    start = file_of(package, folders)
    if start is None:
        return [package]
    lacking = []
    for file in sorted(start.parent.rglob("*.py")):
        wanted = list(imported(file, {package, "strobe"}))
        for text in strings(ast.parse(file.read_text(encoding="utf-8"))):
            if text.startswith(f"{package}.") and text.replace(".", "").isidentifier():
                wanted.append(tuple(text.rsplit(".", 1)))
        for module, name in wanted:
            if not (has(module, name, folders) if name else file_of(module, folders)):
                lacking.append(f"{file.relative_to(start.parent.parent)}: {module} {name}".rstrip())
    return lacking


def broken_entry_points(entry_points: dict[str, dict[str, str]], folders: list[Path]) -> list[str]:
    """Those of entry points, by group and name, whose function is not in the folders."""
    broken = []
    for group, points in entry_points.items():
        for name, value in points.items():
            module, _, function = value.partition(":")
            file = file_of(module, folders)
            defined = ast.parse(file.read_text(encoding="utf-8")).body if file else []
            if not [node for node in defined if isinstance(node, ast.FunctionDef) and node.name == function]:
                broken.append(f"{group}: {name} = {value}")
    return broken
