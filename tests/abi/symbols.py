# SPDX-License-Identifier: Apache-2.0
"""What libstrobe.so exports: every function that the headers mark STROBE_API, with the library's symbol version, and
nothing else but STROBE_PRIVATE: symbols.py LIBRARY ROOT"""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[2]) / "scripts"))
sys.path.insert(0, str(Path(sys.argv[2]) / "scripts/docs"))
import headers
import project

LIBRARY, ROOT = Path(sys.argv[1]), Path(sys.argv[2])

FUNCTION = re.compile(r"^STROBE_API [\w:<>* ]*?\**(\w+)\(", re.MULTILINE)
CLASS = re.compile(r"^class STROBE_API (\w+) \{\n public:\n(.*?)^ private:", re.MULTILINE | re.DOTALL)
METHOD = re.compile(r"^  [\w:<>\[\]&* ]+? (\w+)\([^;]*\)(?: const)?;", re.MULTILINE)
PLATFORM = re.compile(r"_(init|fini|edata|end)$|__bss_start|__asan_|__ubsan_|__odr_|__start_|__stop_")


def declared():
    for path in headers.public_headers(ROOT):
        text = path.read_text(encoding="utf-8")
        scope = "" if path.name in ("strobe.h", "strobe_sparse.h") else "strobe::"
        yield from (scope + name for name in FUNCTION.findall(text))
        for name, body in CLASS.findall(text):
            yield from (f"strobe::{name}::{method}" for method in METHOD.findall(body))


def exported():
    """Pairs of a function's name, without its arguments, and the version of its symbol."""
    command = ["nm", "--dynamic", "--defined-only", "--demangle", "--with-symbol-versions", str(LIBRARY)]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        kind, symbol = line.split(maxsplit=2)[1:]
        symbol, _, version = symbol.replace("@@", "@").partition("@")
        name = re.sub(r"\[abi:\w+\]", "", symbol).partition("(")[0]
        if kind != "A" and not PLATFORM.match(name):
            yield name, version


version = "STROBE_" + ".".join(project.version().split(".")[:2])
found = set(exported())
public = {name for name, of in found if of == version}
bad = [f"{name} is declared with STROBE_API and not exported as {version}" for name in set(declared()) - public]
bad += [f"{name} is exported as {version} and not declared with STROBE_API" for name in public - set(declared())]
bad += [
    f"{name} is exported as {of or 'a symbol without version'}"
    for name, of in found
    if of not in (version, "STROBE_PRIVATE")
]
print(*sorted(bad), sep="\n")
sys.exit(bool(bad) or not public)
