# SPDX-License-Identifier: Apache-2.0
"""A copy of the repository in which mutations are compiled in beside what they replace."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutation:
    """Replaces a text that its file holds exactly once."""

    name: str
    file: str
    text: str
    broken: str


def run(command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


def with_mutations(name, text, mutations, alternatives):
    """`text` of the file `name` with its mutations compiled in, and the complaints about them.
    `alternatives(number, mutation)` is C++ that stands for the broken text where the mutation of that number is on, and
    for the text otherwise; numbers begin at 1."""
    complaints = []
    for number, mutation in enumerate(mutations, start=1):
        if mutation.file != name:
            continue
        count = text.count(mutation.text)
        if count == 1:
            text = text.replace(mutation.text, alternatives(number, mutation))
        else:
            complaints.append(f"{mutation.name}: its text is {count} times in {name}, where it must be once")
    return text, complaints


def make_tree(tree, mutated, change):
    """Brings `tree` up to date with the repository; unchanged files keep their times, so that a second build is short.
    `change(name, text)` gives the text of each file in `mutated` as it is to be there, and complaints, which are
    returned."""
    listed = run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]).stdout
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    complaints = [f"{name}: there is no such file" for name in sorted(mutated - names)]
    for name in sorted(names):
        content = (ROOT / name).read_bytes()
        if name in mutated:
            text, found = change(name, content.decode())
            content = text.encode()
            complaints += found
        target = tree / name
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(ROOT / name, target)
    for path in list(tree.rglob("*")):
        if path.is_file() and str(path.relative_to(tree)) not in names:
            path.unlink()
    return complaints
