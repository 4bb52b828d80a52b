# SPDX-License-Identifier: Apache-2.0
"""Makes the pages of the performance logs from docs/log/*.json.

A log has a title, an introduction, and sections. A section has a title, its level and parts, in order:

    {"text": [...]}                            lines of Markdown
    {"id": ..., "columns": ..., "rows": ...}   a table of measurements
    {"changes": [...]}                         what was tried

A change has an id, what was changed, the prediction if there was one, the outcome, the verdict in one line, the GPU or
processor that it was measured on, and sometimes a version and a note. A constant in the sources names the measurement
that it was chosen by: `// log: d64-four-warpgroups`. An id is unique among all logs.
"""

import json
import re

ID = re.compile(r"[a-z0-9][a-z0-9_-]*")
NAMED = re.compile(r"// log: ([\w-]+(?:, [\w-]+)*)")
REQUIRED = {"id", "change", "outcome", "verdict", "card"}
OPTIONAL = {"version", "prediction", "note"}
LONGEST_VERDICT = 120


def log_files(root):
    return sorted((root / "docs/log").glob("*.json"))


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def parts(log):
    return (part for section in log["sections"] for part in section["parts"])


def changes(log):
    return (change for part in parts(log) for change in part.get("changes", ()))


def ids(log):
    """The ids of all changes and tables."""
    yield from (change["id"] for change in changes(log))
    yield from (part["id"] for part in parts(log) if "rows" in part)


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]


def overview(entries):
    """One line for each change."""
    columns = ["id", "change", "verdict"]
    rows = [[f'<a id="{entry["id"]}"></a>`{entry["id"]}`', entry["change"], entry["verdict"]] for entry in entries]
    if any("version" in entry for entry in entries):
        columns.insert(0, "version")
        rows = [[entry.get("version", ""), *row] for entry, row in zip(entries, rows, strict=True)]
    return table(columns, rows)


def details(entries):
    """Prediction and outcome of each change, folded."""
    yield '??? info "Predictions and measurements"'
    yield ""
    for entry in entries:
        text = [f"`{entry['id']}` ({entry['card']})"]
        if "prediction" in entry:
            text.append(f"*Predicted:* {entry['prediction']}")
        text.append(f"*Measured:* {entry['outcome']}")
        if "note" in entry:
            text.append(f"*Note:* {entry['note']}")
        yield "    - " + "<br>".join(text)
    yield ""


def part_lines(part):
    if "text" in part:
        return part["text"]
    if "rows" in part:
        return [f'<a id="{part["id"]}"></a>', "", *table(part["columns"], part["rows"])]
    return [*overview(part["changes"]), "", *details(part["changes"])]


def page(path):
    """The log as Markdown."""
    log = load(path)
    lines = [f"# {log['title']}", "", *log["introduction"], ""]
    for section in log["sections"]:
        lines += [f"{'#' * section['level']} {section['title']}", ""]
        for part in section["parts"]:
            lines += [*part_lines(part), ""]
    return "\n".join(lines)
