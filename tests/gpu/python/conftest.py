# SPDX-License-Identifier: Apache-2.0
"""Lets the tests import what lies beside them; every test draws the same numbers, whichever ran before."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX leaves PyTorch some memory


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
