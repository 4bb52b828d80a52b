# SPDX-License-Identifier: Apache-2.0
"""What the public headers promise: each declaration's comment ends with @stable or @experimental.

docs/stability.md says what the words mean. "@stable, but for NAME, NAME" excepts members of a struct or class.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "docs"))
import headers


def complaints_of(path):
    """What is wrong with the tags of one public header."""
    for entry in headers.parse(path.read_text(encoding="utf-8"))[1]:
        name, (_, tag, excepted) = ", ".join(entry.names), headers.stability(entry.comment)
        if not tag:
            yield f"{path.name}: the comment of {name} does not end with @stable or @experimental\n"
        members = set(re.findall(r"\w+", re.sub(r"//[^\n]*|/\*.*?\*/", "", "\n".join(entry.code), flags=re.DOTALL)))
        yield from (f"{path.name}: {name} has no member {member}\n" for member in excepted if member not in members)


def complaints(root):
    for path in headers.public_headers(root):
        yield from complaints_of(path)
