# SPDX-License-Identifier: Apache-2.0
"""What is installed: the wheel of Strobe and, because the tests asked for them, those of the drop-ins."""

import ast
import importlib.metadata
import re
from pathlib import Path

import pytest
import strobe
from strobe import _core


def parameters(function):
    """Names in order, with * before what takes the rest, of a function's syntax tree."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return [name for name in names if name != "self"]


def described_by_the_module(function):
    text = re.sub(r"= \\\d+", "= ...", function.__nb_signature__[0][0])
    return parameters(ast.parse(f"{text}: ...").body[0])


def described_by_the_stub():
    for statement in ast.parse(Path(strobe.__file__).with_name("_core.pyi").read_text()).body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name, statement
        if isinstance(statement, ast.ClassDef):
            methods = (member for member in statement.body if isinstance(member, ast.FunctionDef))
            yield from ((f"{statement.name}.{method.name}", method) for method in methods)


def test_stub_describes_the_module():
    stub = dict(described_by_the_stub())
    for name, function in stub.items():
        owner, _, method = name.rpartition(".")
        found = getattr(getattr(_core, owner) if owner else _core, method)
        assert parameters(function) == described_by_the_module(found), name
    public = {name for name in vars(_core) if not name.startswith("_")}
    assert public == {name.partition(".")[0] for name in stub} | {"version"}


def test_types_are_shipped():
    files = {str(file) for file in importlib.metadata.files("strobe")}
    assert {"strobe/py.typed", "strobe/_core.pyi"} <= files


def test_each_bundled_library_is_shipped_once():
    libraries = [file.name for file in importlib.metadata.files("strobe") if ".so." in file.name]
    assert sorted(name.partition(".")[0] for name in libraries) == ["libfmt", "libhwy", "libmd", "libtbb"], libraries
    (wheel,) = (file for file in importlib.metadata.files("strobe") if file.name == "WHEEL")
    assert re.search(r"^Tag: \S+-manylinux_2_\d+_\S+$", wheel.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_interface"])
def test_drop_ins_are_installed_only_when_asked_for(name):
    """Each is a distribution of its own, which no extra of Strobe's names, as no index has it; Strobe's wheel holds
    nothing by that name."""
    distribution = f"strobe-{name.replace('_', '-')}"
    assert not [requirement for requirement in importlib.metadata.requires("strobe") if distribution in requirement]
    assert not [file for file in importlib.metadata.files("strobe") if file.parts[0] == name]
    assert {file.parts[0] for file in importlib.metadata.files(distribution) if file.suffix == ".py"} == {name}
