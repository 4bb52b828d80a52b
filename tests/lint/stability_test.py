# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/stability.py on headers made for them: `python3 tests/lint/stability_test.py`."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import stability

HEADER = """// SPDX-License-Identifier: Apache-2.0
// A header.
#pragma once

namespace strobe {{

/// A struct. {struct_tag}
struct Options {{
  int first = 0;
  int second = 0;  // third
}};

/// A function.
/// {function_tag}
STROBE_API int call(const Options& options);

}}  // namespace strobe
"""


class Stability(unittest.TestCase):
    def complaints(self, struct_tag="@stable", function_tag="@experimental"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "header.h")
            path.write_text(HEADER.format(struct_tag=struct_tag, function_tag=function_tag))
            return list(stability.complaints_of(path))

    def test_tags_are_accepted(self):
        self.assertEqual(self.complaints(), [])
        self.assertEqual(self.complaints(struct_tag="@stable, but for first, second"), [])

    def test_a_declaration_without_a_tag_is_named(self):
        for tag in ("", "@table", "@stable as ever", "stable"):
            (complaint,) = self.complaints(function_tag=tag)
            self.assertEqual(complaint, "header.h: the comment of call does not end with @stable or @experimental\n")

    def test_an_exception_must_be_a_member(self):
        self.assertEqual(
            self.complaints(struct_tag="@stable, but for second, third"), ["header.h: Options has no member third\n"]
        )


if __name__ == "__main__":
    unittest.main()
