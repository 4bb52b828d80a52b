# SPDX-License-Identifier: Apache-2.0
"""Compiles the public headers, the examples of docs/cpp.md and the quickstart as users do: without one warning.

    compile_cleanly.py ROOT [COMPILER...]

by each COMPILER, a C++ one, and by every g++ from 12 and clang++ from 14 on the PATH. `make compilers` installs them.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "tests/docs"))
sys.path.insert(0, str(Path(sys.argv[1]) / "scripts/docs"))
import headers
import markdown

ROOT = Path(sys.argv[1]).resolve()

INCLUDES = ["-I", str(ROOT / "include")]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", *INCLUDES, "-O1", "-c", "-o", "/dev/null"]
GCC, CLANG = range(12, 30), range(14, 40)
MEMBER = re.compile(r"^  (?!using |//)[^(]*?(\w+)(?:\{[^;]*\}| = [^;]*)?;", re.MULTILINE)
STRUCT = re.compile(r"(?<!>\n)^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)


def compilers():
    """Pairs of a C++ compiler and its C compiler, each once."""
    names = [*sys.argv[2:], *(f"g++-{n}" for n in GCC), *(f"clang++-{n}" for n in CLANG)]
    found = {}
    for cxx in filter(None, map(shutil.which, names)):
        name = Path(cxx).name
        c = name.replace("++", "") if name.startswith("clang") else name.replace("g++", "gcc").replace("c++", "cc")
        found.setdefault(Path(cxx).resolve(), (cxx, str(Path(cxx).with_name(c))))
    return list(found.values())


def example(language):
    page = markdown.blocks(ROOT / "docs/cpp.md")
    return next(block.text for block in page if block.language == language and " main(" in block.text) + "\n"


def initialised_structs(header):
    """One variable of each struct that names the last member alone, and one that names the first: a member between them
    or at the end that has no initialiser of its own is a warning."""
    text = header.read_text(encoding="utf-8")
    for name, body in STRUCT.findall(re.sub(r"//.*", "", text)):
        members = MEMBER.findall(body)
        for member in dict.fromkeys([members[0], members[-1]]) if members else ():
            yield f"extern const strobe::{name} {name}_{member};\n"
            yield f"const strobe::{name} {name}_{member}{{.{member} = {{}}}};\n"


def cxx_sources():
    """Text by name."""
    yield "docs/cpp.md", example("cpp")
    yield "quickstart/main.cpp", (ROOT / "examples/quickstart/main.cpp").read_text(encoding="utf-8")
    for header in headers.public_headers(ROOT):
        include = f"#include <strobe/{header.name}>\n"
        yield header.name, include + include + "".join(initialised_structs(header))


def c_sources():
    yield "docs/cpp.md", example("c")
    yield "quickstart/main.c", (ROOT / "examples/quickstart/main.c").read_text(encoding="utf-8")
    for name in ("strobe.h", "strobe_sparse.h", "version.h"):
        yield name, f"#include <strobe/{name}>\nextern int declared;\n"


def compile_text(compiler, flags, suffix, text):
    """What the compiler says."""
    with tempfile.NamedTemporaryFile("w", suffix=suffix, encoding="utf-8") as source:
        source.write(text)
        source.flush()
        return subprocess.run([compiler, *flags, source.name], capture_output=True, text=True, check=False)


def complaints(cxx, c):
    for name, text in cxx_sources():
        result = compile_text(cxx, ["-std=c++20", *STRICT], ".cpp", text)
        if result.returncode != 0:
            yield f"{cxx}, {name}:\n{result.stderr}"
    for standard in ("-std=c99", "-std=c17"):
        for name, text in c_sources():
            result = compile_text(c, [standard, *STRICT], ".c", text)
            if result.returncode != 0:
                yield f"{c} {standard}, {name}:\n{result.stderr}"
    c_header = compile_text(cxx, ["-std=c++11", *STRICT], ".cpp", "#include <strobe/strobe.h>\n")
    if c_header.returncode != 0:
        yield f"{cxx} -std=c++11, strobe.h:\n{c_header.stderr}"
    for header in headers.public_headers(ROOT):
        if header.name in ("strobe.h", "strobe_sparse.h", "version.h"):
            continue
        old = compile_text(cxx, ["-std=c++17", *INCLUDES, "-E"], ".cpp", f"#include <strobe/{header.name}>\n")
        first = next((line for line in old.stderr.splitlines() if re.search(r"\berror:", line)), "")
        if "need C++20" not in first:
            yield f"{cxx} -std=c++17, {header.name}: the first error is not that C++20 is needed, but: {first}"


found = compilers()
bad = [complaint for pair in found for complaint in complaints(*pair)]
print("compiled by", ", ".join(cxx for cxx, _ in found))
print(*bad, sep="\n")
sys.exit(bool(bad) or not found)
