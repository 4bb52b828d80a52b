# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/shared_lines.py on trees made for them: `python3 tests/lint/shared_lines_test.py`."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from shared_lines import complaints, files_of, shared

OWN = "\n".join(f"int own_{i} = {i};" for i in range(30)) + "\n"
SHARED = "// A comment.\n#include <vector>\nint launch(Sm90 sm90) {\n  sm90.start();\n\n  return sm90.end();\n}\n"


class SharedLines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, family, text):
        path = self.root / "src" / family / "forward.cpp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def counted(self):
        return shared(files_of(self.root, "sm80"), files_of(self.root, "sm90"))

    def test_lines_count_that_are_the_same_but_for_the_familys_name(self):
        self.write("sm90", SHARED)
        self.write("sm80", OWN + SHARED.replace("sm90", "sm80") + OWN)
        self.assertEqual(self.counted(), (3, 63))

    def test_two_lines_alone_do_not_count(self):
        self.write("sm90", "int a = f();\nint b = g();\n")
        self.write("sm80", OWN + "int a = f();\nint b = g();\n")
        self.assertEqual(self.counted(), (0, 32))

    def test_a_family_with_too_many_is_named(self):
        self.write("sm90", OWN * 2 + SHARED)
        self.write("sm80", SHARED.replace("sm90", "sm80") + "int more = 1;\n")
        found = list(complaints(self.root))
        self.assertEqual(len(found), 1)
        self.assertIn("src/sm80: 3 of 4 lines of code stand in src/sm90, too", found[0])


if __name__ == "__main__":
    unittest.main()
