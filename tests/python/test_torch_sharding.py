# SPDX-License-Identifier: Apache-2.0
"""strobe.torch.attention of DTensors, by two processes: what one process computes."""

import sys
from pathlib import Path

from children import run

PROGRAM = Path(__file__).with_name("torch_sharded.py")


def test_dtensors():
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert "as on one device" in run([sys.executable, *launcher, PROGRAM]).stdout
