# SPDX-License-Identifier: Apache-2.0
"""Checks format, clang-tidy, Python and the rules of the project; with --format rewrites the files instead.

Run through `make lint` and `make format`, which bring the pinned tools into .venv. clang-tidy needs
build/lint/compile_commands.json, which the preset "lint" makes. A file that passed is not looked at again until it, a
header of ours that it reaches, its compile command or the checks change.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import shared_lines
import stability
from import_rules import check_imports
from include_rules import check_families, check_includes

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".venv" / "bin"
COMPILE_COMMANDS = ROOT / "build" / "lint" / "compile_commands.json"
PASSED = ROOT / "build" / "lint" / "passed"  # one empty file per passed hash, and what clang-tidy is told to compile
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
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
PLACE = re.compile(rf"^(?:{re.escape(str(ROOT))}/)?(\S+?):\d+:\d+: ", re.MULTILINE)
FINDING = re.compile(r"^\S+:\d+:\d+: (?:warning|error): ")

# Highway files compile themselves once per instruction set; one of them is enough to read the code.
CLANG_ARGUMENTS = ["-DHWY_COMPILE_ONLY_STATIC", "-Wno-unknown-warning-option"]
if platform.machine() == "x86_64":
    CLANG_ARGUMENTS.append("-march=haswell")


def project_files():
    """Every file of the project, without what was built or downloaded."""
    for folder, subfolders, names in os.walk(ROOT):
        kept = (name for name in subfolders if name == ".ci" or not name.startswith((".", "__pycache__")))
        subfolders[:] = sorted(name for name in kept if Path(folder, name) not in SKIPPED)
        yield from (Path(folder) / name for name in sorted(names) if name != ".git")  # a file in a linked work tree


def run(command):
    """Runs a tool in the project root and returns whether it succeeded and what it said."""
    result = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.returncode == 0, result.stdout + result.stderr


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


@cache
def tidy_configurations():
    return [path for path in project_files() if path.name == ".clang-tidy"]


@cache
def contents(path):
    return path.read_bytes()


@cache
def project_includes(path, include_folders):
    """The project's own headers that `path` includes directly."""
    found = []
    for name in INCLUDE.findall(contents(path).decode("utf-8", "replace")):
        candidates = ((folder / name).resolve() for folder in (path.parent, *include_folders))
        header = next((candidate for candidate in candidates if candidate.is_file()), None)
        if header and header.is_relative_to(ROOT):
            found.append(header)
    return found


def closure(source, include_folders):
    """`source` and every header of the project that it reaches."""
    reached, waiting = {source}, [source]
    while waiting:
        for header in project_includes(waiting.pop(), include_folders):
            if header not in reached:
                reached.add(header)
                waiting.append(header)
    return sorted(reached)


def fingerprint(entry, tidy_version):
    """Changes with everything of ours that clang-tidy's verdict depends on; system headers are taken as fixed."""
    folders = (Path(part[2:]) for part in shlex.split(entry["command"]) if part.startswith("-I"))
    folders = tuple(folder for folder in folders if folder.is_relative_to(ROOT))
    digest = hashlib.sha256(repr((tidy_version, CLANG_ARGUMENTS, entry["command"])).encode())
    for path in [*tidy_configurations(), *closure(Path(entry["file"]), folders)]:
        digest.update(repr((str(path.relative_to(ROOT)), len(contents(path)))).encode() + contents(path))
    return digest.hexdigest()


def findings(output):
    """clang-tidy's findings, each with its excerpt, without its counts."""
    blocks = []
    for line in output.splitlines(keepends=True):
        if FINDING.match(line):
            blocks.append(line)
        elif blocks and line.startswith((" ", "/")):
            blocks[-1] += line
    return blocks


def check_tidy(entries, jobs):
    """Runs clang-tidy on the files that did not pass before; returns complaints and the number of files looked at."""
    command = [TOOLS / "clang-tidy", "--quiet", "-p", PASSED]
    command += [f"--extra-arg={argument}" for argument in CLANG_ARGUMENTS]
    version = run([TOOLS / "clang-tidy", "--version"])[1]
    PASSED.mkdir(parents=True, exist_ok=True)
    (PASSED / COMPILE_COMMANDS.name).write_text(json.dumps(entries))
    stamps = {entry["file"]: PASSED / fingerprint(entry, version) for entry in entries}
    waiting = [file for file, stamp in stamps.items() if not stamp.exists()]

    complaints = {}  # a finding in a header comes once per file that includes it
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run, [*command, file]): file for file in waiting}
        for done, future in enumerate(as_completed(futures), start=1):
            ok, output = future.result()
            if ok:
                stamps[futures[future]].touch()
            else:
                blocks = findings(output) or [output]
                complaints.update((block.partition("\n")[0], block) for block in blocks)
            if sys.stdout.isatty():
                print(f"\r  tidy    {done} of {len(waiting)} files", end="\r", flush=True)
    return sorted(complaints.values()), len(waiting)


def python_module_entries():
    """The sources of the Python module, which the release build leaves to the wheel's."""
    program = "import nanobind, sysconfig; print(nanobind.include_dir(), sysconfig.get_path('include'), sep='\\n')"
    ok, output = run([TOOLS / "python", "-c", program])
    if not ok:
        sys.exit(f"nanobind or Python's headers are missing; run `make lint`, which installs them.\n{output}")
    system = " ".join(f"-isystem {shlex.quote(folder)}" for folder in output.splitlines())
    command = f"c++ -std=c++20 -I{ROOT / 'include'} -I{ROOT / 'src'} {system} -c"
    files = sorted((ROOT / "python" / "src").glob("*.cpp"))
    return [{"directory": str(ROOT), "command": f"{command} {file}", "file": str(file)} for file in files]


def tidy_entries():
    if not COMPILE_COMMANDS.exists():
        sys.exit(f"{COMPILE_COMMANDS.relative_to(ROOT)} is missing; run `make lint`, which makes it.")
    entries = {entry["file"]: entry for entry in json.loads(COMPILE_COMMANDS.read_text())}
    ours = {
        file for file in map(Path, entries) if not file.is_relative_to(ROOT / "build") and file.suffix in CPP_SUFFIXES
    }
    return [entries[str(file)] for file in sorted(ours)] + python_module_entries()


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
    entries = tidy_entries()
    complaints, looked_at = check_tidy(entries, arguments.jobs)
    passed &= report("tidy", f"{looked_at} files, {len(entries) - looked_at} unchanged", complaints)
    sys.exit(0 if passed else "lint found something to fix")


if __name__ == "__main__":
    main()
