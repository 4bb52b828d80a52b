# SPDX-License-Identifier: Apache-2.0
"""strobe.torch.attention of DTensors, by two processes: what one process computes."""

import sys
from pathlib import Path

from children import run

PROGRAM = Path(__file__).with_name("torch_sharded.py")


def test_dtensors():
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert "as on one device" in run([sys.executable, *launcher, PROGRAM]).stdout


def test_dtensors_are_not_loaded_before_they_are_used():
    program = """
import sys
import strobe.torch
assert "torch.distributed.tensor" not in sys.modules
import torch.distributed.tensor
assert "strobe.torch.sharding" in sys.modules
"""
    run([sys.executable, "-c", program])


def test_dtensors_that_are_there_before():
    run(
        [
            sys.executable,
            "-c",
            "import sys, torch.distributed.tensor, strobe.torch; sys.modules['strobe.torch.sharding']",
        ]
    )
