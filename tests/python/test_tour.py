# SPDX-License-Identifier: Apache-2.0
"""The pages' Python runs, block after block, and prints what they say; the tour and the options need NumPy alone."""

import ast
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


OF_OTHER_PAGES = {"kernels", "stream"}  # beside those of 8-bit tensors: what takes a GPU


def run_examples(page):
    """Runs each block after the first one as if it were the second; together they show every option."""
    from markdown import blocks
    from strobe._option_list import EIGHT_BIT_NAMES, OPTIONS

    setup, *examples = [block for block in blocks(page) if block.language == "python"]
    session = {}
    exec(setup.text, session)
    shown = set()
    for block in examples:
        names = dict(session)
        exec(compile(block.text, f"{page.name}:{block.line}", "exec"), names)
        assert names["o"] is not session["o"], f"{page.name}:{block.line}"
        assert (abs(names["o"]) < 10).all(), f"{page.name}:{block.line}"
        calls = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Call)]
        shown |= {keyword.arg for call in calls for keyword in call.keywords}
    assert OPTIONS.keys() - shown == OF_OTHER_PAGES | set(EIGHT_BIT_NAMES)
    assert "mask" in shown


@pytest.mark.parametrize(
    "part", ["readme", "options", "tour", "page", "serving", "migrating", "expressions", "wide-heads"]
)
def test_runs(part):
    children.run([sys.executable, __file__, part])


if __name__ == "__main__":
    if sys.argv[1] in ("options", "tour"):
        sys.modules.update(dict.fromkeys(("torch", "jax", "ml_dtypes", "transformers")))  # None: cannot be imported
    if sys.argv[1] == "readme":
        run(ROOT / "README.md")
    elif sys.argv[1] == "options":
        run_examples(ROOT / "docs" / "options.md")
    elif sys.argv[1] in ("serving", "migrating", "expressions", "wide-heads"):
        run(ROOT / "docs" / f"{sys.argv[1]}.md")
    else:
        run(PAGE, until="## PyTorch" if sys.argv[1] == "tour" else None)
