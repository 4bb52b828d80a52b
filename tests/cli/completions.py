# SPDX-License-Identifier: Apache-2.0
"""Completes command lines in bash, fish and zsh, as they do it, and formats the man page: completions.py PROGRAM

fish and zsh only where they are installed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = sys.argv[1]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def flags_of(command):
    """Those that its help lists."""
    return set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", run(PROGRAM, *command, "--help"), re.MULTILINE))


def bash(*words):
    script = run(PROGRAM, "completion", "bash")
    ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }; _strobe; printf "%s\\n" "${COMPREPLY[@]}"'
    return run("bash", "-euc", script + ask, "bash", "strobe", *words).split()


class Bash(unittest.TestCase):
    def test_commands(self):
        self.assertEqual(bash("ver"), ["verify"])
        self.assertLessEqual({"info", "run", "explain", "verify", "bench"}, set(bash("")))

    def test_every_flag(self):
        for command in ("info", "run", "explain", "verify", "bench"):
            self.assertEqual({word for word in bash(command, "") if word.startswith("--")}, flags_of([command]))
        self.assertEqual(bash("run", "--cau"), ["--causal", "--causal-top-left"])

    def test_values(self):
        self.assertEqual(bash("explain", "--dtype", ""), ["float32", "float16", "bfloat16"])
        self.assertEqual(bash("bench", "--dtype", "float32,bf"), ["float32,bfloat16"])
        self.assertEqual(bash("explain", "--seqlen", ""), [])

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "q.npy").touch()
            self.assertEqual(bash("run", "--q", f"{folder}/"), [f"{folder}/q.npy"])
            self.assertEqual(bash("run", "--out", f"{folder}/"), [])


@unittest.skipUnless(shutil.which("fish"), "there is no fish")
class Fish(unittest.TestCase):
    def complete(self, line):
        script = run(PROGRAM, "completion", "fish")
        with tempfile.TemporaryDirectory() as home:
            environment = {**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home}
            text = run("fish", "--no-config", "-c", f"{script}\ncomplete -C '{line}'", env=environment)
        return [entry.split("\t")[0] for entry in text.splitlines()]

    def test_completions(self):
        self.assertEqual(self.complete("strobe ver"), ["verify"])
        for command in ("run", "bench"):
            self.assertEqual(
                {w for w in self.complete(f"strobe {command} --") if w.startswith("--")}, flags_of([command])
            )
        self.assertEqual(self.complete("strobe explain --dtype bf"), ["bfloat16"])


@unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
class Zsh(unittest.TestCase):
    def test_flags(self):
        """What the function hands to zsh's _arguments."""
        script = run(PROGRAM, "completion", "zsh")
        stubs = (
            "compdef() { :; }; _describe() { :; }\n_arguments() { if [[ $1 == -C ]]; then state=argument line=(run); "
        )
        stubs += 'else shift; print -rl -- "$@"; fi }\n'
        specs = run("zsh", "-f", "-c", stubs + script + "\n_strobe").splitlines()
        self.assertEqual({re.match(r"--[a-z-]+", spec).group() for spec in specs}, flags_of(["run"]))
        self.assertIn("--out", "".join(spec for spec in specs if spec.endswith(":DIR:_files -/")))


class Manual(unittest.TestCase):
    def test_it_names_every_flag_of_every_command(self):
        page = run(PROGRAM, "manual").replace("\\-", "-")
        for command in ("info", "run", "explain", "verify", "bench"):
            part = page[page.index(f".SS strobe {command}\n") :]
            part = part[: part.find("\n.SS ", 1)]
            self.assertLessEqual(flags_of([command]), set(re.findall(r"\\fB(--[a-z-]+)\\fR", part)), command)

    @unittest.skipUnless(shutil.which("groff"), "there is no groff")
    def test_groff_has_nothing_to_say(self):
        result = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-rLL=78n"], input=run(PROGRAM, "manual"), capture_output=True, text=True
        )
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("STROBE(1)", result.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
