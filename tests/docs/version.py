# SPDX-License-Identifier: Apache-2.0
"""Checks that the version stands alike wherever people and programs read it: version.py ROOT"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts"))
import project

PLACES = {  # each file, and the line that names the version
    "CHANGELOG.md": r"^## \[{}\]",
    "CITATION.cff": r"^version: {}$",
    "README.md": r"^Version {} ",
    "python/flash_attn/pyproject.toml": r'^version = "{}"$',
    "python/flash_attn_interface/pyproject.toml": r'^version = "{}"$',
}

version = re.escape(project.version())
texts = {place: (project.ROOT / place).read_text(encoding="utf-8") for place in PLACES}
bad = [place for place, line in PLACES.items() if not re.search(line.format(version), texts[place], re.MULTILINE)]
print(*(f"{place}: does not name {project.version()}, the version in CMakeLists.txt" for place in bad), sep="\n")
sys.exit(bool(bad))
