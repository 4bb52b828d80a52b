# SPDX-License-Identifier: Apache-2.0
"""Checks that Strobe's version, and those of what it works with, stand alike wherever people and programs read them:
version.py ROOT"""

import re
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts"))
import project
import set_version

FRAMEWORKS = ("torch", "jax", "transformers")  # in the order of README's row
ROW = re.compile(r"^\| optional: PyTorch, JAX, transformers \| (.*) or later \| (.*) \|$", re.MULTILINE)


def frameworks():
    """The least versions that the wheel asks for, and those that the tests install."""
    extras = tomllib.loads((project.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = (project.ROOT / "scripts/requirements-python.txt").read_text()
    for name in FRAMEWORKS:
        least = next(entry for entry in extras[name] if entry.startswith(f"{name}>="))
        yield least.partition(">=")[2], re.search(rf"^{name}==(.*)$", pins, re.MULTILINE)[1]


version = project.version()
bad = [f"{place}: names {found}, not {version}" for place, found in set_version.wrong_places(version)]
if not re.search(rf"^## \[{re.escape(version)}\]", (project.ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
    bad.append(f"CHANGELOG.md: has no part for {version}")
readme = (project.ROOT / "README.md").read_text(encoding="utf-8")
least, tested = (cell.split(", ") for cell in ROW.search(readme).groups())
wanted, installed = zip(*frameworks(), strict=True)
if least != list(wanted) or not all(map(str.startswith, installed, tested)):
    bad.append(f"README.md: {', '.join(FRAMEWORKS)} are {wanted} in pyproject.toml, and the tests install {installed}")
print(*bad, sep="\n")
sys.exit(bool(bad))
