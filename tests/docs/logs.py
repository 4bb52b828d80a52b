# SPDX-License-Identifier: Apache-2.0
"""Checks docs/log/*.json, and that each measurement that a source names is in a log: logs.py ROOT"""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts/docs"))
import performance_logs

ROOT = Path(sys.argv[1])


def bad_changes(name, log):
    for change in performance_logs.changes(log):
        place = f"{name}: {change.get('id', change)}"
        fields = set(change)
        if not performance_logs.REQUIRED <= fields <= performance_logs.REQUIRED | performance_logs.OPTIONAL:
            yield f"{place}: fields are {sorted(fields)}"
        yield from (f"{place}: {field} is empty" for field, text in change.items() if not text)
        if len(change["verdict"]) > performance_logs.LONGEST_VERDICT:
            yield f"{place}: the verdict is longer than {performance_logs.LONGEST_VERDICT} characters"


def bad_tables(name, log):
    for part in performance_logs.parts(log):
        if "rows" in part and any(len(row) != len(part["columns"]) for row in part["rows"]):
            yield f"{name}: {part['id']}: a row has not as many cells as there are columns"


def unknown_names(known):
    """Measurements that sources name and no log has."""
    for path in sorted((ROOT / "src").rglob("*.[ch]*")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for names in performance_logs.NAMED.findall(line):
                for name in names.split(", "):
                    if name not in known:
                        yield f"{path.relative_to(ROOT)}:{number}: no log has {name}"


all_logs = {path.name: performance_logs.load(path) for path in performance_logs.log_files(ROOT)}
count = Counter(name for log in all_logs.values() for name in performance_logs.ids(log))
bad = [line for item in all_logs.items() for check in (bad_changes, bad_tables) for line in check(*item)]
bad += [f"{name} is the id of {times} entries" for name, times in count.items() if times > 1]
bad += [
    f"{name} is no id of the form {performance_logs.ID.pattern}"
    for name in count
    if not performance_logs.ID.fullmatch(name)
]
bad += unknown_names(set(count)) if count else ["docs/log has no logs"]
print(*bad, sep="\n")
sys.exit(bool(bad))
