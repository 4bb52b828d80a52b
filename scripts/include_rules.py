# SPDX-License-Identifier: Apache-2.0
"""Which folder of the sources may include which: the table that keeps the layers apart, and its check.

`make lint` runs it; tests/lint/include_rules_test.py tests it.
"""

import re

# A folder's files may include their own folder and what stands here: folders, or single headers. The longest matching
# folder counts. What is not listed, tests among it, may include everything.
PUBLIC = "include"
FAMILIES = ("sm90", "sm80")  # of GPU kernels
FORWARD = "src/kernels/sm90/forward"
SHARED_BY_SCORES = ["src/kernels/expression", "src/kernels/sequence", "src/kernels/math", "src/kernels/ptx"]
SHARED_KERNELS = ["src/kernels/scheduler", "src/kernels/auxiliary", "src/kernels/score", *SHARED_BY_SCORES]
ALLOWED = {
    PUBLIC: [],
    # Numbers that results depend on: plain constexpr C++ that kernels include, too.
    "src/expression": [PUBLIC, "src/call/limits.h", "src/kernels/expression/range.h"],
    "src/call": [PUBLIC, "src/kernels/math/constants.h", "src/kernels/math/eight_bit.h"],
    "src/call/explain_texts.cpp": [PUBLIC, "src/call", "src/expression"],
    "src/call/text_options.h": [PUBLIC, "src/call", "src/expression"],
    "src/call/text_options.cpp": [PUBLIC, "src/call", "src/expression"],
    "src/runtime": [PUBLIC],
    # Device code, which NVRTC compiles.
    "src/kernels": [],
    # The enumeration of elements and the rule are plain constexpr C++, which everything else is written for.
    "src/kernels/ptx": ["src/kernels/math/element.h"],
    "src/kernels/math": ["src/kernels/ptx"],
    "src/kernels/expression": ["src/kernels/math", "src/kernels/ptx"],
    "src/kernels/sequence": [
        "src/kernels/expression/captures.h",
        "src/kernels/score/rule.h",
        "src/kernels/math",
        "src/kernels/ptx",
    ],
    "src/kernels/score": SHARED_BY_SCORES,
    # The softmax knows no modifier of scores, and these know neither it nor where they are applied.
    "src/kernels/score/softmax.h": [
        *(f"src/kernels/score/{name}.h" for name in ("fragment", "lse", "rule", "unnormalized")),
        *SHARED_BY_SCORES,
    ],
    "src/kernels/score/modifiers": [
        *(f"src/kernels/score/{name}.h" for name in ("fragment", "params", "rule")),
        *SHARED_BY_SCORES,
    ],
    "src/kernels/scheduler": ["src/kernels/score", *SHARED_BY_SCORES],
    "src/kernels/auxiliary": ["src/kernels/score", *SHARED_BY_SCORES],
    **{
        f"src/kernels/{family}": ["src/kernels/scheduler", "src/kernels/score", *SHARED_BY_SCORES]
        for family in ("sm90", "sm80")
    },
    # Producers and consumers of a forward meet in shared memory alone.
    **{
        f"{FORWARD}/{part}": [
            *(f"{FORWARD}/{name}" for name in ("barriers.h", "config.h", "context.h", "params.h", "smem.h", *parts)),
            *(f"src/kernels/{name}" for name in ("sm90/ptx", "sm90/scheduler", "sm90/tile", "scheduler")),
            "src/kernels/score",
            *SHARED_BY_SCORES,
        ]
        for part, parts in {"tile": (), "produce": ("tile",), "consume": ("store", "tile"), "store": ("tile",)}.items()
    },
    # philox.h is plain C++: every engine and the reference draw the same dropout mask from it.
    "src/reference": [PUBLIC, "src/call", "src/expression", "src/kernels/math/philox.h"],
    "src/cpu": [
        PUBLIC,
        "src/call",
        "src/expression",
        "src/kernels/expression/range.h",
        "src/engine/captured_options.h",
        "src/engine/engine.h",
        "src/kernels/math/philox.h",
    ],
    # Of device code, the headers that are plain constexpr C++: host and kernel agree on sizes by including the same.
    "src/gpu": [
        PUBLIC,
        "src/call",
        "src/expression",
        "src/runtime",
        "src/engine/captured_options.h",
        "src/engine/engine.h",
        "src/engine/wrapped_call.h",
        *SHARED_KERNELS,
    ],
    **{
        f"src/{family}": [
            PUBLIC,
            "src/call",
            "src/gpu",
            "src/runtime",
            "src/engine/engine.h",
            f"src/kernels/{family}",
            *SHARED_KERNELS,
        ]
        for family in FAMILIES
    },
    # The lists of families.
    "src/gpu/families.cpp": ["src/gpu", *(f"src/{family}/family.h" for family in FAMILIES)],
    "src/gpu/pack.cpp": [
        "src/gpu",
        "src/runtime",
        "src/sm90/few_rows.h",
        *(f"src/{family}/{header}.h" for family in FAMILIES for header in ("pack", "list_kernels")),
    ],
    "src/engine": [PUBLIC, "src/call"],
    "src/engine/registry.cpp": [
        PUBLIC,
        "src/engine",
        "src/call",
        "src/cpu/engine.h",
        "src/gpu/engine.h",
    ],
    "src/api": [
        PUBLIC,
        "src/call",
        "src/engine",
        "src/expression/formula.h",
        "src/expression/json.h",
        "src/kernels/math/philox.h",
    ],
    # checked.h is the one type of sizes, tensors.h the one list of a call's tensors, everywhere.
    "python": [PUBLIC, *(f"src/call/{name}.h" for name in ("checked", "option_fields", "row_format", "tensors"))],
    "python/src/program.cpp": [PUBLIC, "python", "tools/strobe/program.h"],
    # Programs hold device memory through the driver that the library opens, and compare with the reference.
    "tools/io": [PUBLIC, "src/call/checked.h"],
    "tools/gpu": [PUBLIC, "src/call/checked.h", "src/call/tensors.h", "src/runtime/device.h"],
    "tools/strobe": [
        PUBLIC,
        "tools",
        "bench",
        "src/call/limits.h",
        "src/call/problem.h",
        "src/call/problem_fields.h",
        "src/call/tensors.h",
        "src/gpu/auxiliary/served_steps.h",
        "src/gpu/call/override.h",
        "src/gpu/call_candidates.h",
        "src/gpu/compile_ahead.h",
        "src/gpu/plan/candidates.h",
        "src/gpu/plan/known_devices.h",
        "src/reference",
        "src/runtime/device.h",
        "src/runtime/shared_work.h",
        "src/runtime/tuned_table.h",
    ],
    # The ablation measures variants that only the engine itself can name; the probe runs the units that the CPU engine
    # takes for bfloat16.
    "bench": [
        PUBLIC,
        "tools",
        "src/cpu/bfloat16",
        "src/reference",
        "src/runtime/device.h",
        "src/gpu/call/override.h",
        "src/sm90",
    ],
    "examples": [PUBLIC, "tools/io", "tools/gpu", "bench", "src/reference"],
}
# How many headers of a folder may include one another in a row, from the first one on.
DEEPEST = {f"{FORWARD}/kernel.h": 9}
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


def included_files(root, path):
    """(line number, file) of each of the project's files that `path` includes, all relative to the root."""
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        header = match and included_file(root, path, match.group(1) or match.group(2))
        if header:
            yield number, header


def tower(root, path, folder):
    """The longest row of headers of `folder` that include one another, from `path` on."""
    headers = [header for _, header in included_files(root, path) if below(header.as_posix(), folder)]
    return [path, *max((tower(root, header, folder) for header in headers), key=len, default=[])]


def check_tower(root, path):
    """A complaint where more headers include one another in a row from `path` on than DEEPEST says."""
    deepest = DEEPEST.get(path.as_posix())
    row = tower(root, path, path.parent.as_posix()) if deepest else []
    if not deepest or len(row) <= deepest:
        return []
    names = " -> ".join(header.relative_to(path.parent).as_posix() for header in row)
    return [f"{path}: {len(row)} headers include one another, where {deepest} are the most: {names}\n"]


def check_includes(root, path):
    """Complaints about the includes of `path`, each with the line and the rule it breaks. Both paths are absolute."""
    root = root.resolve()
    path = path.resolve().relative_to(root)
    complaints = check_tower(root, path)
    folder = max((rule for rule in ALLOWED if below(path.as_posix(), rule)), key=len, default=None)
    if folder is None:
        return complaints
    for number, header in included_files(root, path):
        if not any(below(header.as_posix(), allowed) for allowed in (folder, *ALLOWED[folder])):
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
