# SPDX-License-Identifier: Apache-2.0
"""Tests of what scripts/lint.py says of rows of the performance logs: `python3 tests/lint/log_rows_test.py`."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from lint import check_log_rows, log_rows


class LogRows(unittest.TestCase):
    def test_rows_that_exist(self):
        self.assertIn("d64-warps", log_rows())
        self.assertEqual(check_log_rows("tiles.cpp", "// log: d64-warps, d64-turns\nint tiles; // log: two-ctas\n"), [])
        self.assertEqual(check_log_rows("tiles.cpp", "// The catalog: nothing-of-ours\n"), [])

    def test_rows_that_do_not(self):
        found = check_log_rows("tiles.cpp", "/// log: d64-warps,\n/// d65-warps\n")
        self.assertEqual(found, ["tiles.cpp: no performance log has a row named d65-warps\n"])


if __name__ == "__main__":
    unittest.main()
