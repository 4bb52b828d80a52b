# SPDX-License-Identifier: Apache-2.0
"""Lets the tests import what lies beside them, and nothing of the source tree: the wheel is what is tested."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
