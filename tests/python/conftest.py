# SPDX-License-Identifier: Apache-2.0
"""Lets the tests import what lies beside them, and nothing of the source tree: the wheel is what is tested.

PyTorch's threads sleep while they wait. They would spin, which costs several times what the tests compute as soon as
something else runs.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when PyTorch is loaded
sys.path.insert(0, str(Path(__file__).parent))
