"""Checks that the API reference has every public type and function: api.py ROOT"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts/docs"))
import headers

DECLARED = (
    re.compile(r"^(?:struct|class|enum class)(?: \[\[nodiscard\]\])?(?: STROBE_API)? (\w+) [:{]", re.MULTILINE),
    re.compile(r"^using (\w+) =", re.MULTILINE),
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


bad = [complaint for path in headers.public_headers(Path(sys.argv[1])) for complaint in complaints(path)]
print(*bad, sep="\n")
sys.exit(bool(bad))
