# SPDX-License-Identifier: Apache-2.0
"""clang-tidy for scripts/lint.py: several sources at once, and none that passed before.

Most of clang-tidy's time is the parsing of headers. Sources with one compile command are therefore looked at together,
in a file that includes them; where there is a finding, each is looked at alone, and that decides. Of the checks that
hold today three look at nothing but the main file: check_main_file() has what they find, by the text.

A file that passed is not looked at again until it, a header of ours that it reaches, its compile command or the checks
change.
"""

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".venv" / "bin"
COMPILE_COMMANDS = ROOT / "build" / "lint" / "compile_commands.json"
PASSED = ROOT / "build" / "lint" / "passed"  # one empty file per passed hash, and what clang-tidy is told to compile
TOGETHER = ROOT / "build" / "lint" / "together"  # sources that include others
MOST_TOGETHER = 8
SUFFIXES = {".c", ".cpp", ".h"}

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
FINDING = re.compile(r"^\S+:\d+:\d+: (?:warning|error): ")
NAMES = re.compile(r"^\s*(?:using (?:\w*::)+(\w+);|namespace (\w+) = [\w:]+;)", re.MULTILINE)
EXCEPTED = re.compile(r"NOLINTBEGIN\(misc-unused-using-decls\).*?NOLINTEND\(misc-unused-using-decls\)", re.DOTALL)
C_HEADER = re.compile(
    r"^\s*#\s*include\s+<((?:assert|ctype|errno|fenv|float|inttypes|limits|locale|math|setjmp|signal|stdarg|stddef"
    r"|stdint|stdio|stdlib|string|time|wchar)\.h)>",
    re.MULTILINE,
)

# Highway files compile themselves once per instruction set; one of them is enough to read the code.
ARGUMENTS = ["-DHWY_COMPILE_ONLY_STATIC", "-Wno-unknown-warning-option"]
if platform.machine() == "x86_64":
    ARGUMENTS.append("-march=haswell")


def run(command):
    """Runs a tool in the project root and returns whether it succeeded and what it said."""
    result = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.returncode == 0, result.stdout + result.stderr


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


def configurations(source):
    """The .clang-tidy files that hold for a source, the nearest first."""
    folders = (folder for folder in source.parents if folder.is_relative_to(ROOT))
    return [folder / ".clang-tidy" for folder in folders if (folder / ".clang-tidy").is_file()]


def fingerprint(entry, version):
    """Changes with everything of ours that clang-tidy's verdict depends on; system headers are taken as fixed."""
    folders = (Path(part[2:]) for part in shlex.split(entry["command"]) if part.startswith("-I"))
    folders = tuple(folder for folder in folders if folder.is_relative_to(ROOT))
    digest = hashlib.sha256(repr((version, ARGUMENTS, entry["command"])).encode())
    source = Path(entry["file"])
    for path in [*configurations(source), *closure(source, folders)]:
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


def flags_of(entry):
    """A compile command without what is one file's: its source and its output."""
    parts = iter(shlex.split(entry["command"])[1:])
    return tuple(part for part in parts if part not in ("-c", entry["file"]) and not (part == "-o" and next(parts)))


def is_alone(source):
    """C has no namespaces, and what compiles itself several times needs to be the main file."""
    return source.suffix == ".c" or b"HWY_TARGET_INCLUDE" in contents(source)


def batches(entries):
    """Entries that can be looked at together."""
    alike = defaultdict(list)
    for entry in entries:
        source = Path(entry["file"])
        alike[flags_of(entry), configurations(source)[0], source if is_alone(source) else None].append(entry)
    return [
        alike_entries[first : first + MOST_TOGETHER]
        for alike_entries in alike.values()
        for first in range(0, len(alike_entries), MOST_TOGETHER)
    ]


def look_at(entry):
    arguments = [f"--extra-arg={argument}" for argument in ARGUMENTS]
    return run([TOOLS / "clang-tidy", "--quiet", "-p", PASSED, *arguments, entry["file"]])


def look_at_together(batch):
    """Whether clang-tidy finds nothing in a file that includes those of the batch."""
    files = [entry["file"] for entry in batch]
    configuration = configurations(Path(files[0]))[0].relative_to(ROOT)
    folder = TOGETHER / configuration.parent
    folder.mkdir(parents=True, exist_ok=True)
    if folder != TOGETHER:  # where the project's own holds
        (TOGETHER / configuration).write_bytes(contents(ROOT / configuration))
    source = folder / f"{hashlib.sha256(repr(files).encode()).hexdigest()}.cpp"
    source.write_text("".join(f'#include "{file}"\n' for file in files))
    command = [TOOLS / "clang-tidy", "--quiet", "--checks=-bugprone-suspicious-include", source]
    return run([*command, "--", *flags_of(batch[0]), *ARGUMENTS])[0]


def check_batch(batch):
    """What is to say of each entry; nothing of those that passed."""
    if len(batch) > 1 and look_at_together(batch):
        return [(entry, []) for entry in batch]
    said = []
    for entry in batch:
        ok, output = look_at(entry)
        said.append((entry, [] if ok else findings(output) or [output]))
    return said


def check(entries, jobs):
    """Runs clang-tidy on the files that did not pass before; returns complaints and the number of files looked at."""
    version = run([TOOLS / "clang-tidy", "--version"])[1]
    for folder in (PASSED, TOGETHER):
        folder.mkdir(parents=True, exist_ok=True)
    (PASSED / COMPILE_COMMANDS.name).write_text(json.dumps(entries))
    stamps = {entry["file"]: PASSED / fingerprint(entry, version) for entry in entries}
    waiting = [entry for entry in entries if not stamps[entry["file"]].exists()]

    complaints = {}  # a finding in a header comes once per file that includes it
    done = 0
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(check_batch, batch) for batch in batches(waiting)]):
            for entry, blocks in future.result():
                complaints.update((block.partition("\n")[0], block) for block in blocks)
                if not blocks:
                    stamps[entry["file"]].touch()
                done += 1
            if sys.stdout.isatty():
                print(f"\r  tidy    {done} of {len(waiting)} files", end="\r", flush=True)
    return sorted(complaints.values()), len(waiting)


def check_main_file(name, text):
    """misc-unused-using-decls, misc-unused-alias-decls and modernize-deprecated-headers of a C++ source."""
    complaints = []
    text = EXCEPTED.sub("", text)
    for match in NAMES.finditer(text):
        declared = match.group(1) or match.group(2)
        rest = text[: match.start()] + text[match.end() :]
        if not re.search(rf"\b{declared}\b", rest):
            complaints.append(f"{name}: {declared} is declared and not used\n")
    complaints += [f"{name}: <{header}>, which C++ has as <c...>\n" for header in C_HEADER.findall(text)]
    return complaints


def python_module_entries():
    """The sources of the Python module, which the release build leaves to the wheel's."""
    program = "import nanobind, sysconfig; print(nanobind.include_dir(), sysconfig.get_path('include'), sep='\\n')"
    ok, output = run([TOOLS / "python", "-c", program])
    if not ok:
        sys.exit(f"nanobind or Python's headers are missing; run `make lint`, which installs them.\n{output}")
    system = " ".join(f"-isystem {shlex.quote(folder)}" for folder in output.splitlines())
    command = f"c++ -std=c++20 -I{ROOT} -I{ROOT / 'include'} -I{ROOT / 'src'} {system} -c"
    files = sorted((ROOT / "python" / "src").glob("*.cpp"))
    return [{"directory": str(ROOT), "command": f"{command} {file}", "file": str(file)} for file in files]


def all_entries():
    """The compile commands of the project's sources."""
    if not COMPILE_COMMANDS.exists():
        sys.exit(f"{COMPILE_COMMANDS.relative_to(ROOT)} is missing; run `make lint`, which makes it.")
    entries = {entry["file"]: entry for entry in json.loads(COMPILE_COMMANDS.read_text())}
    ours = {file for file in map(Path, entries) if not file.is_relative_to(ROOT / "build") and file.suffix in SUFFIXES}
    return [entries[str(file)] for file in sorted(ours)] + python_module_entries()


if __name__ == "__main__":
    found, looked_at = check(all_entries(), os.cpu_count())
    print("".join(found), end="")
    print(f"{looked_at} files, {len(found)} complaints")
    sys.exit(bool(found))
