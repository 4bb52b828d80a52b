# SPDX-License-Identifier: Apache-2.0
"""Writes KIT/kit.json, what a kit was packed from and the tests that its programs have: list_tests.py KIT PROGRAM..."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import project


def listed(program: Path) -> list[str]:
    """The names that --gtest_list_tests says: a suite's, and those of its tests below it."""
    lines = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    names, suite = [], ""
    for line in lines.splitlines():
        word = line.partition("#")[0].rstrip()
        if word.startswith("  "):
            names.append(suite + word.strip())
        elif word.endswith("."):
            suite = word
    return [name for name in names if "DISABLED_" not in name]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    kit, *programs = sys.argv[1:]
    about = {
        "version": project.version(),
        "commit": git("rev-parse", "HEAD"),
        "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
        "tests": {program: listed(Path(kit, program)) for program in programs},
    }
    Path(kit, "kit.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
