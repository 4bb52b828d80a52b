# SPDX-License-Identifier: Apache-2.0
"""The jobs of jobs.toml, which says what its fields are: an entry is one for each suite, seed, part or value."""

import importlib.util
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS_OF_A_JOB = 60  # of tests that are shared out among jobs
_FAMILY = re.compile(r"/(sm\d+)(?:_|$)")
_ENTRY = {"name", "command", "seconds", "family", "gpus", "exclusive", "timing", "priority", "slots", "limit", "needs"}
_ENTRY |= {
    "environment",
    "each",
    "parts",
    "shards",
    "seeds",
    "stride",
    "first_seed",
    "tests",
    "without",
    "seconds_per_test",
}


@dataclass
class Job:
    """A process: `seconds` is an estimate, `limit` when it is ended, `tests` the names of a GoogleTest program's."""

    name: str
    command: list[str]
    seconds: float
    family: str = "any"
    gpus: int = 1
    exclusive: bool = False
    timing: bool = False
    priority: int = 5
    slots: int = 1
    limit: float = 0.0
    needs: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    tests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exclusive |= self.timing
        self.limit = self.limit or max(4 * self.seconds, self.seconds + 120)

    def filled(self, out: Path, gpus: int) -> tuple[list[str], dict[str, str]]:
        """Command and environment, where {out} is a folder for its files and {gpus} how many GPUs it has."""
        values = {"out": str(out), "gpus": str(gpus)}
        return (
            [os.path.expandvars(_replaced(word, values)) for word in self.command],
            {name: _replaced(value, values) for name, value in self.environment.items()},
        )


def _replaced(text: str, values: Mapping[str, Any]) -> str:
    """Braces of other words stay: they are a command's own."""
    return re.sub(r"\{(\w+)\}", lambda match: str(values.get(match.group(1), match.group(0))), text)


def load(file: Path, tests: Mapping[str, list[str]], times: Mapping[str, Any] | None = None) -> list[Job]:
    """`tests`: the names that each program lists. `times`: what an earlier run took, by job and by test."""
    times = times or {"jobs": {}, "tests": {}}
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    jobs = []
    for entry in data["job"]:
        if unknown := entry.keys() - _ENTRY:
            raise ValueError(f"{file.name}: {entry.get('name')} has {', '.join(sorted(unknown))}, which nothing reads")
        jobs += _jobs_of(entry, tests, times)
    names = [job.name for job in jobs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{file.name}: several jobs are named {', '.join(sorted(twice))}")
    for job in jobs:
        job.seconds = times["jobs"].get(job.name, job.seconds)
    return jobs


def _jobs_of(entry: dict[str, Any], tests: Mapping[str, list[str]], times: Mapping[str, Any]) -> Iterator[Job]:
    own = {name: entry[name] for name in entry.keys() & Job.__dataclass_fields__.keys() - {"name", "command", "tests"}}
    for values in entry.get("each", [""]):
        values = values if isinstance(values, list) else [values]
        named = {"each": values[0]} | {f"each{i}": value for i, value in enumerate(values)}
        name = "-".join(str(x) for x in (entry["name"], values[0]) if x)
        for suffix, more, changed in _shares(entry, tests, times):
            words = [_replaced(word, named | more) for word in shlex.split(entry["command"])]
            environment = {k: _replaced(str(v), named | more) for k, v in entry.get("environment", {}).items()}
            settings = own | {"environment": environment | changed.pop("environment", {})} | changed
            yield Job(name + suffix, words, **settings)


def _shares(entry: dict[str, Any], tests: Mapping[str, list[str]], times: Mapping[str, Any]) -> Iterator[tuple]:
    """What each job of an entry adds to the name, replaces in the command and sets otherwise."""
    if "tests" in entry:
        yield from _suites(entry, tests[entry["tests"]], times["tests"])
    elif "shards" in entry:
        seeds, stride = entry["seeds"], entry.get("stride", 1)
        for shard in range(entry["shards"]):
            first = entry.get("first_seed", 1) + shard * seeds * stride
            variables = {"STROBE_SEEDS": str(seeds), "STROBE_STRIDE": str(stride), "STROBE_FIRST_SEED": str(first)}
            yield f"-{first}", {}, {"environment": variables}
    else:
        parts = entry.get("parts", 1)
        for part in range(parts):
            yield f"-{part}" if parts > 1 else "", {"part": part, "parts": parts}, {}


def family_of(test: str) -> str:
    """sm90 where a test's name has none: what is not for each family is for that one."""
    match = _FAMILY.search(test)
    return match.group(1) if match else "sm90"


def _suites(entry: dict[str, Any], names: list[str], seconds: Mapping[str, float]) -> Iterator[tuple]:
    """The tests of the entry's family, suite by suite, in shares of about SECONDS_OF_A_JOB."""
    suites: dict[str, list[str]] = {}
    for name in names:
        suite = name.partition(".")[0]
        if family_of(name) == entry["family"] and suite not in entry.get("without", []):
            suites.setdefault(suite, []).append(name)
    each = entry["seconds_per_test"]
    for suite, members in suites.items():
        of_test = {name: seconds.get(name, each) for name in members}
        count = min(len(members), max(1, round(sum(of_test.values()) / SECONDS_OF_A_JOB)))
        for share in range(count):
            mine = members[share::count]
            suffix = f"-{suite}-{share}" if count > 1 else f"-{suite}"
            changed = {"tests": mine, "seconds": max(5.0, sum(of_test[name] for name in mine))}
            yield suffix, {"tests": ":".join(mine)}, changed


def why_not(job: Job, gpus: int, capability: str) -> str | None:
    """Why this machine cannot run a job; None if it can."""
    if job.gpus > gpus:
        return f"needs {job.gpus} GPUs"
    if job.family == "sm90" and job.gpus and capability and capability != "9.0":
        return f"needs a GPU of compute capability 9.0, this is {capability}"
    for need in job.needs:
        kind, _, name = need.partition(":")
        there = {
            "program": lambda x: shutil.which(x) is not None,
            "module": lambda x: importlib.util.find_spec(x) is not None,
            "variable": lambda x: x in os.environ,
        }[kind]
        if not there(name):
            return f"needs the {kind} {name}"
    return None


def named_files(job: Job, roots: set[str]) -> list[str]:
    """What the command names below the kit's folders; of a test's file without what lies behind ::."""
    words = [word.rpartition("=")[2].partition("::")[0] for word in job.command]
    return [word for word in words if "/" in word and word.partition("/")[0] in roots]
