# SPDX-License-Identifier: Apache-2.0
"""Which folder of the sources may include which: the table that keeps the layers apart, and its check.

`make lint` runs it; tests/lint/include_rules_test.py tests it.
"""

import re
from pathlib import Path

# A folder's files may include their own folder and what stands here: folders, or single headers. The longest matching
# folder counts. What is not listed, tests among it, may include everything.
PUBLIC = "include"
FAMILIES = ("sm90", "sm80")  # of GPU kernels
ALLOWED = {
    PUBLIC: [],
    "src/call": [PUBLIC],
    "src/runtime": [PUBLIC],
    # Device code, which NVRTC compiles.
    "src/kernels": [],
    "src/kernels/score": ["src/kernels/math"],
    "src/kernels/math": ["src/kernels/score"],
    "src/kernels/scheduler": ["src/kernels/score", "src/kernels/math"],
    "src/kernels/steps": ["src/kernels/score", "src/kernels/math"],
    "src/kernels/sm90": ["src/kernels/scheduler", "src/kernels/score", "src/kernels/math"],
    "src/kernels/sm80": ["src/kernels/scheduler", "src/kernels/score", "src/kernels/math"],
    # philox.h is plain C++: every engine and the reference draw the same dropout mask from it.
    "src/reference": [PUBLIC, "src/call", "src/kernels/math/philox.h"],
    "src/cpu": [PUBLIC, "src/call", "src/engine/engine.h", "src/kernels/math/philox.h"],
    # Of device code, the headers that are plain constexpr C++: host and kernel agree on sizes by including the same.
    "src/gpu": [
        PUBLIC,
        "src/call",
        "src/runtime",
        "src/engine/engine.h",
        "src/kernels/score",
        "src/kernels/math",
        "src/kernels/scheduler",
        "src/kernels/steps",
    ],
    **{
        f"src/{family}": [
            PUBLIC,
            "src/call",
            "src/gpu",
            "src/runtime",
            "src/engine/engine.h",
            f"src/kernels/{family}",
            "src/kernels/scheduler",
            "src/kernels/steps",
            "src/kernels/score",
            "src/kernels/math",
        ]
        for family in FAMILIES
    },
    # The lists of families.
    "src/gpu/families.cpp": ["src/gpu", *(f"src/{family}/family.h" for family in FAMILIES)],
    "src/gpu/pack.cpp": ["src/gpu", "src/runtime", *(f"src/{family}/pack.h" for family in FAMILIES)],
    "src/engine": [PUBLIC, "src/call"],
    "src/engine/registry.cpp": [
        PUBLIC,
        "src/engine",
        "src/call",
        "src/cpu/engine.h",
        "src/gpu/engine.h",
    ],
    "src/api": [PUBLIC, "src/call", "src/engine", "src/kernels/math/philox.h"],
    # checked.h is the one type of sizes, everywhere.
    "python": [PUBLIC, "src/call/checked.h"],
    # Programs hold device memory through the driver that the library opens, and compare with the reference.
    "tools/io": [PUBLIC, "src/call/checked.h"],
    "tools/gpu": [PUBLIC, "src/call/checked.h", "src/runtime/device.h"],
    "tools/strobe": [PUBLIC, "tools", "bench", "src/reference", "src/runtime/device.h"],
    # The ablation measures variants that only the engine itself can name.
    "bench": [PUBLIC, "tools", "src/reference", "src/runtime/device.h", "src/gpu/call/override.h", "src/sm90"],
    "examples": [PUBLIC, "tools/io", "tools/gpu", "bench", "src/reference"],
}
# Folders that name no family of GPU kernels, in code or comments.
KNOWS_NO_FAMILY = ("src/runtime", "src/api", "src/call")
FAMILY = re.compile(r"\b(" + "|".join(FAMILIES) + r")\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)')
INCLUDE_FOLDERS = ("include", "src", "tools", ".", "examples", "python/src")


def below(path, folder):
    """Whether `path` is `folder` or lies in it; both are relative to the project's root, with slashes."""
    return path == folder or path.startswith(folder + "/")


def included_file(root, path, name):
    """The project's file that `#include "name"` in `path` means, relative to the root; None for anybody else's."""
    for folder in (path.parent, *INCLUDE_FOLDERS):
        candidate = (root / folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root)
    return None


def check_includes(root, path):
    """Complaints about the includes of `path`, each with the line and the rule it breaks. Both paths are absolute."""
    root = root.resolve()
    path = path.resolve().relative_to(root)
    folder = max((rule for rule in ALLOWED if below(path.as_posix(), rule)), key=len, default=None)
    if folder is None:
        return []
    complaints = []
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        header = match and included_file(root, Path(path), match.group(1) or match.group(2))
        if header and not any(below(header.as_posix(), allowed) for allowed in (folder, *ALLOWED[folder])):
            rule = ", ".join(ALLOWED[folder]) or "nothing else of the project"
            complaints.append(f"{path}:{number}: includes {header.as_posix()}, but {folder} may include {rule}\n")
    return complaints


def check_families(root, path):
    """Complaints about lines of `path` that name a family of GPU kernels where none is known. Absolute paths."""
    name = path.resolve().relative_to(root.resolve())
    if not any(below(name.as_posix(), folder) for folder in KNOWS_NO_FAMILY):
        return []
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return [f"{name}:{number}: names a family of kernels\n" for number, line in lines if FAMILY.search(line)]
