# SPDX-License-Identifier: Apache-2.0
"""Checks format, clang-tidy, Python and the rules of the project; with --format rewrites the files instead.

Run through `make lint` and `make format`, which bring the pinned tools into .venv. clang-tidy needs
build/lint/compile_commands.json, which the preset "lint" makes.
"""

import argparse
import os
import re
import sys
from collections import Counter
from pathlib import Path

import shared_lines
import stability
import tidy
from import_rules import check_imports
from include_rules import check_families, check_includes
from tidy import TOOLS, run

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {ROOT / "build", ROOT / "tests" / "fuzz" / "corpus"}  # what was built, and bytes that nobody wrote

FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
CPP_SUFFIXES = {".c", ".cpp", ".cu", ".cuh", ".h"}
CODE_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake"}
MAX_LINES = 400
# The first line of a file that a script wrote; its layout is the script's.
GENERATED = re.compile(r"// \w+ by (\S+\.py)")
LICENSE = "SPDX-License-Identifier: Apache-2.0"
LICENSE_LINES = 3  # among the first of a source file: after the #! of a script and the name of a generator
MACHINE_PATH = re.compile(r"(?<![\w.\-/$})])/(?:home/(?!someone)|root/|tmp/|work/)\w")
PLACE = re.compile(rf"^(?:{re.escape(str(ROOT))}/)?(\S+?):\d+:\d+: ", re.MULTILINE)


def project_files():
    """Every file of the project, without what was built or downloaded."""
    for folder, subfolders, names in os.walk(ROOT):
        kept = (name for name in subfolders if name == ".ci" or not name.startswith((".", "__pycache__")))
        subfolders[:] = sorted(name for name in kept if Path(folder, name) not in SKIPPED)
        yield from (Path(folder) / name for name in sorted(names) if name != ".git")  # a file in a linked work tree


def check_format(files):
    _, output = run([TOOLS / "clang-format", "--dry-run", *files])
    places = Counter(match.group(1) for match in PLACE.finditer(output))
    return [f"{path}: {count} places, which `make format` fixes\n" for path, count in sorted(places.items())]


def check_python(files):
    complaints = [run([TOOLS / "ruff", "check", "--quiet", *files]), run([TOOLS / "ruff", "format", "--check", *files])]
    return [output for ok, output in complaints if not ok]


def check_types():
    """What pyproject.toml names: the Python package, and calls of it."""
    ok, output = run([TOOLS / "mypy", "--no-error-summary", "--cache-dir", ROOT / "build" / "lint" / "mypy"])
    return [] if ok else output.splitlines(keepends=True)


def check_generated(files):
    """Whether each file that a script beside it wrote is what the script writes today."""
    complaints = []
    for path in files:
        match = GENERATED.match(path.read_text())
        script = match and path.parent / match.group(1)
        if script and script.is_file():
            ok, output = run([sys.executable, script, "--check"])
            complaints += [] if ok else [f"{path.relative_to(ROOT)}: {output}"]
    return complaints


def check_forms():
    """Whether the files that GitHub and citation tools read have the form that they expect."""
    schemas = {
        "github-workflows": sorted((ROOT / ".github/workflows").glob("*.yml")),
        "github-issue-forms": [path for path in FORMS.glob("*.yml") if path.name != "config.yml"],
        "github-issue-config": [FORMS / "config.yml"],
        "dependabot": [ROOT / ".github/dependabot.yml"],
        "citation-file-format": [ROOT / "CITATION.cff"],
    }
    commands = (
        [TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{name}", *files] for name, files in schemas.items()
    )
    return [output for ok, output in map(run, commands) if not ok]


def check_mutations():
    """Whether what mutations replace is still there."""
    ok, output = run([sys.executable, ROOT / "scripts" / "mutation" / "check.py"])
    return [] if ok else output.splitlines(keepends=True)


def check_rules(files):
    """The rules that no tool knows."""
    complaints = []
    for path in files:
        name = path.relative_to(ROOT)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines = text.splitlines()
        if path.suffix in CPP_SUFFIXES:
            complaints += check_includes(ROOT, path) + check_families(ROOT, path)
        if path.suffix == ".cpp":
            complaints += tidy.check_main_file(name, text)
        if path.suffix in CODE_SUFFIXES and len(lines) > MAX_LINES and not GENERATED.match(text):
            complaints.append(f"{name}: {len(lines)} lines, where {MAX_LINES} are the most\n")
        source = lines and (path.suffix in CODE_SUFFIXES or path.name == "CMakeLists.txt")
        if source and not any(LICENSE in line for line in lines[:LICENSE_LINES]):
            complaints.append(f"{name}:1: no line with {LICENSE}\n")
        if path.suffix == ".h" and "#pragma once" not in text and not path.stem.endswith("-inl"):
            complaints.append(f"{name}: a header needs #pragma once\n")
        if text and not text.endswith("\n"):
            complaints.append(f"{name}: the last line has no newline\n")
        for number, line in enumerate(lines, start=1):
            if MACHINE_PATH.search(line):
                complaints.append(f"{name}:{number}: a path of one machine\n")
            if path.suffix in CODE_SUFFIXES and line != line.rstrip():
                complaints.append(f"{name}:{number}: trailing whitespace\n")
    return complaints


def report(title, what, complaints):
    print(f"  {title:<8}{what}" + (f", {len(complaints)} complaints" if complaints else ""), flush=True)
    print("".join(complaints), end="", flush=True)
    return not complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", action="store_true", help="rewrite the files instead of checking them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="clang-tidy processes at once")
    arguments = parser.parse_args()

    files = list(project_files())
    sources = [path for path in files if path.suffix in CPP_SUFFIXES]
    generated = [path for path in sources if GENERATED.match(path.read_text())]
    cpp = [path for path in sources if path not in generated]
    python = [path for path in files if path.suffix == ".py"]
    if arguments.format:
        ok = run([TOOLS / "clang-format", "-i", *cpp])[0] and run([TOOLS / "ruff", "format", *python])[0]
        sys.exit(0 if ok else "clang-format or ruff could not format every file")

    passed = report("format", f"{len(cpp)} files", check_format(cpp))
    passed &= report("python", f"{len(python)} files", check_python(python))
    passed &= report("types", "python/strobe", check_types())
    passed &= report("imports", "python/strobe", check_imports(ROOT / "python"))
    passed &= report("rules", f"{len(files)} files", check_rules(files))
    passed &= report("scripts", f"{len(generated)} generated files", check_generated(generated))
    passed &= report("mutants", "the code that they replace", check_mutations())
    passed &= report("shared", "code of two families", list(shared_lines.complaints(ROOT)))
    passed &= report("forms", "workflows, issue forms, citation", check_forms())
    passed &= report("promise", "stable and experimental declarations", list(stability.complaints(ROOT)))
    entries = tidy.all_entries()
    complaints, looked_at = tidy.check(entries, arguments.jobs)
    passed &= report("tidy", f"{looked_at} files, {len(entries) - looked_at} unchanged", complaints)
    sys.exit(0 if passed else "lint found something to fix")


if __name__ == "__main__":
    main()
