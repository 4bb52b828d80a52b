# SPDX-License-Identifier: Apache-2.0
"""Checks that Strobe's version, and those of what it works with, stand alike wherever people and programs read them:
version.py ROOT"""

import re
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts"))
import project

PLACES = {  # each file, and the line that names the version
    "CHANGELOG.md": r"^## \[{}\]",
    "CITATION.cff": r"^version: {}$",
    "README.md": r"^Version {0} (?:.|\n)*^  version = .{0}.,$",
    "python/flash_attn/pyproject.toml": r'^version = "{}"$',
    "python/flash_attn_interface/pyproject.toml": r'^version = "{}"$',
}

FRAMEWORKS = ("torch", "jax", "transformers")  # in the order of README's row
ROW = re.compile(r"^\| optional: PyTorch, JAX, transformers \| (.*) or later \| (.*) \|$", re.MULTILINE)


def frameworks():
    """The least versions that the wheel asks for, and those that the tests install."""
    extras = tomllib.loads((project.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = (project.ROOT / "scripts/requirements-python.txt").read_text()
    for name in FRAMEWORKS:
        least = next(entry for entry in extras[name] if entry.startswith(f"{name}>="))
        yield least.partition(">=")[2], re.search(rf"^{name}==(.*)$", pins, re.MULTILINE)[1]


version = re.escape(project.version())
texts = {place: (project.ROOT / place).read_text(encoding="utf-8") for place in PLACES}
bad = [place for place, line in PLACES.items() if not re.search(line.format(version), texts[place], re.MULTILINE)]
print(*(f"{place}: does not name {project.version()}, the version of the library" for place in bad), sep="\n")
least, tested = (cell.split(", ") for cell in ROW.search(texts["README.md"]).groups())
wanted, installed = zip(*frameworks(), strict=True)
if least != list(wanted) or not all(map(str.startswith, installed, tested)):
    bad.append("README.md")
    print(f"README.md: {', '.join(FRAMEWORKS)} are {wanted} in pyproject.toml, and the tests install {installed}")
sys.exit(bool(bad))
