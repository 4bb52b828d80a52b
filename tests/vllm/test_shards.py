# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism, in processes of its own."""

import sys
from pathlib import Path

from children import run


def test_processes():
    assert "as one process" in run([sys.executable, Path(__file__).with_name("sharded.py")]).stdout
