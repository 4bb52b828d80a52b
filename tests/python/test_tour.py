# SPDX-License-Identifier: Apache-2.0
"""The pages' Python runs, block after block, and prints what they say; the tour needs NumPy alone."""

import contextlib
import io
import sys
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "docs"))
PAGE = ROOT / "docs" / "python.md"


def run(page, until=None):
    """Runs the blocks above the line that is `until`, or all."""
    from markdown import blocks_and_next

    lines = page.read_text(encoding="utf-8").splitlines()
    end = lines.index(until) if until else len(lines)
    session = {}
    count = 0
    for block, after in blocks_and_next(page):
        if block.language != "python" or block.line > end:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, f"{page.name}:{block.line}", "exec"), session)
        expected = after.text.rstrip() if after.language == "text" else ""
        assert printed.getvalue().rstrip() == expected, f"{page.name}:{block.line}"
        count += 1
    assert count > 0


@pytest.mark.parametrize("part", ["readme", "tour", "page", "serving"])
def test_runs(part):
    children.run([sys.executable, __file__, part])


if __name__ == "__main__":
    if sys.argv[1] == "tour":
        sys.modules.update(dict.fromkeys(("torch", "jax", "ml_dtypes", "transformers")))  # None: cannot be imported
    if sys.argv[1] == "readme":
        run(ROOT / "README.md")
    elif sys.argv[1] == "serving":
        run(ROOT / "docs" / "serving.md")
    else:
        run(PAGE, until="## PyTorch" if sys.argv[1] == "tour" else None)
