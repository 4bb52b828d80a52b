# SPDX-License-Identifier: Apache-2.0
"""What jobs printed, in a few words; the table and the JSON of a run."""

import json
import re
from pathlib import Path
from typing import Any

from job_schedule import Result

STATUSES = ("failed", "killed", "not run", "skipped", "passed")  # as the table has them: what needs a reader first
MOST_NAMES = 12
TAIL = 4000  # characters of a log that did not pass, in the JSON
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_ENDED = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \((\d+) ms\)$", re.MULTILINE)
_BEGUN = re.compile(r"^\[ RUN +\] (\S+)$", re.MULTILINE)
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_PYTEST_END = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed|skipped|error|deselected).*?)(?: =+)?$", re.MULTILINE)


class Log:
    """Of GoogleTest and pytest: the names of tests, and how they ended."""

    def __init__(self, text: str) -> None:
        self.text = _COLOR.sub("", text)
        ended = _ENDED.findall(self.text)
        self.seconds = {name: int(ms) / 1e3 for _, name, ms in ended}
        self.failures = [name for how, name, _ in ended if how == "FAILED"] + _PYTEST_FAILED.findall(self.text)
        self.skipped = sum(how == "SKIPPED" for how, *_ in ended)
        self.unfinished = [name for name in _BEGUN.findall(self.text) if name not in self.seconds]
        self._pytest = _PYTEST_END.findall(self.text)

    def words(self) -> str:
        parts = []
        if self.seconds:
            parts.append(f"{len(self.seconds)} tests" + (f", {self.skipped} skipped" if self.skipped else ""))
        parts += self._pytest[-1:]
        if self.failures:
            parts.append("failed: " + " ".join(self.failures[:4]) + (" .." if len(self.failures) > 4 else ""))
        if self.unfinished:
            parts.append("did not end: " + " ".join(self.unfinished[:4]))
        if not parts:
            parts = [line.strip() for line in self.text.splitlines() if line.strip()][-1:]
        return "; ".join(parts)[:300]

    @property
    def tested_nothing(self) -> bool:
        return bool(self.seconds) and self.skipped == len(self.seconds)


def row(result: Result, log: str) -> dict[str, Any]:
    """As the JSON has it."""
    read = Log(log)
    status = result.status
    if status == "passed" and result.job.tests and not read.seconds:
        status, result.words = "failed", "no test ran"
    elif status == "passed" and read.tested_nothing:
        status = "skipped"
    fields = {
        "name": result.job.name,
        "status": status,
        "seconds": round(result.seconds, 1),
        "estimate": round(result.job.seconds, 1),
        "family": result.job.family,
        "gpus": result.gpus,
        "words": "; ".join(x for x in (result.words, read.words() if log else "") if x),
        "command": result.job.command if not result.job.tests else [*result.job.command[:1], "..."],
    }
    if read.failures or read.unfinished:
        fields |= {"failures": read.failures, "unfinished": read.unfinished}
    if status in ("failed", "killed"):
        fields["tail"] = read.text[-TAIL:]
    if read.seconds:
        fields["tests"] = read.seconds
    return fields


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda x: (STATUSES.index(x["status"]), -x["seconds"], x["name"]))


def counts(rows: list[dict[str, Any]]) -> str:
    of_status = {status: sum(x["status"] == status for x in rows) for status in STATUSES}
    return ", ".join(f"{count} {status}" for status, count in of_status.items() if count) or "no jobs"


def brief(rows: list[dict[str, Any]]) -> str:
    """What a run ends with on a terminal: rows of what is wrong, and the names of what was not run, and why."""
    reasons: dict[str, list[str]] = {}
    for x in rows:
        if x["status"] in ("not run", "skipped"):
            words = "no time" if x["status"] == "not run" else "skipped, all its tests" if x["seconds"] else x["words"]
            reasons.setdefault(words, []).append(x["name"])
    wrong = [x for x in rows if x["status"] in ("failed", "killed")]
    lines = table(wrong).splitlines()[1:]
    for words, names in reasons.items():
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        lines.append(f"{words}: {' '.join(names[:MOST_NAMES])}{more}")
    return "\n".join([*lines, counts(rows)]) + "\n"


def table(rows: list[dict[str, Any]]) -> str:
    """Failures first."""
    lines = [counts(rows)]
    width = max((len(x["name"]) for x in rows), default=0)
    for x in ordered(rows):
        of_gpus = ",".join(x["gpus"]) or "-"
        lines.append(
            f"{x['status']:8}{x['name']:{width}}  {x['seconds']:6.1f} s  GPU {of_gpus:5}  {x['words']}".rstrip()
        )
    return "\n".join(lines) + "\n"


def times(results: Path) -> dict[str, dict[str, float]]:
    """What the jobs and tests of an earlier run took, for the estimates of the next."""
    rows = json.loads(results.read_text(encoding="utf-8"))["results"]
    found: dict[str, dict[str, float]] = {"jobs": {}, "tests": {}}
    for x in rows:
        found["tests"] |= x.get("tests", {})
        if x["status"] == "passed":
            found["jobs"][x["name"]] = x["seconds"]
    return found
