# SPDX-License-Identifier: Apache-2.0
"""Checks that the API reference has every public type and function of C++, C and Python: api.py ROOT"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts/docs"))
import headers
import python_reference

DECLARED = (
    re.compile(r"^(?:struct|class|enum class)(?: \[\[nodiscard\]\])?(?: STROBE_API)? (\w+) [:{]", re.MULTILINE),
    re.compile(r"^using (\w+) =", re.MULTILINE),
    re.compile(r"^#define (STROBE_\w+) ", re.MULTILINE),
    re.compile(r"^\} (strobe_\w+);", re.MULTILINE),
    re.compile(r"^STROBE_API [\w:<>* ]*?\**(\w+)\(", re.MULTILINE),
)


def complaints(path):
    text = path.read_text(encoding="utf-8")
    declared = {name for pattern in DECLARED for name in pattern.findall(text)}
    introduction, entries = headers.parse(text)
    shown = {name for entry in entries for name in entry.names}
    if not introduction or not declared:
        yield f"{path.name}: no introduction, or nothing was found in it"
    yield from (f"{path.name}: {name} is not in the reference" for name in sorted(declared - shown))


def python_complaints(root):
    for module, names in python_reference.MODULES.items():
        place = root / "python" / module.replace(".", "/")
        path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        public = python_reference.public_names(path.read_text(encoding="utf-8"))
        yield from (f"{module}: {name} is public or in the reference, not both" for name in public ^ set(names))


bad = [complaint for path in headers.public_headers(Path(sys.argv[1])) for complaint in complaints(path)]
bad += python_complaints(Path(sys.argv[1]))
print(*bad, sep="\n")
sys.exit(bool(bad))
