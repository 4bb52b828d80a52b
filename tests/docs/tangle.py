# SPDX-License-Identifier: Apache-2.0
"""Makes C++ out of the examples of a page.

    tangle.py PAGE.md program LANGUAGE OUT   the page's first block with a main(), as it is
    tangle.py PAGE.md tests OUT.cpp          one GoogleTest for each `cpp` block but the first and whole programs

In `tests` the first `cpp` block is what every other block goes on from. Each must leave a `status`: it is ok, or, when
a `text` block follows, it is a failure with exactly that message.
"""

import sys
from pathlib import Path

from markdown import blocks, blocks_and_next

PREAMBLE = """// Made by {script} from {page}.
#include <gtest/gtest.h>
#include <strobe/attention.h>
#include <strobe/plan.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

"""

TEST = """
TEST({page}, Line{line}) {{
{setup}
static_cast<void>(call);
#line {line} "{path}"

{code}
{check}
}}
"""


def split_includes(code):
    """The #include lines of a block, and the rest of it."""
    lines = code.splitlines()
    includes = [line for line in lines if line.startswith("#include")]
    return includes, "\n".join(line for line in lines if line not in includes)


def program(page, language):
    return next(block.text for block in blocks(page) if block.language == language and " main(" in block.text) + "\n"


def tests(page):
    setup, *_ = examples = [block for block in blocks(page) if block.language == "cpp" and " main(" not in block.text]
    text = ""
    includes = []
    for block, after in blocks_and_next(page):
        if block == setup or block not in examples:
            continue
        check = "  EXPECT_TRUE(status.ok()) << status.message();"
        if after.language == "text":
            check = f'  EXPECT_FALSE(status.ok());\n  EXPECT_EQ(status.message(), R"({after.text})");'
        own_includes, code = split_includes(block.text)
        includes += own_includes
        text += TEST.format(
            page=page.stem.capitalize(), line=block.line, path=page, setup=setup.text, code=code, check=check
        )
    return PREAMBLE.format(script=Path(__file__).name, page=page.name) + "\n".join(includes) + text


page, kind, *rest, out = sys.argv[1:]
code = program(Path(page), *rest) if kind == "program" else tests(Path(page))
Path(out).write_text(code, encoding="utf-8")
