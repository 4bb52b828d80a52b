# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism, in processes of its own."""

import sys
from pathlib import Path

import pytest
import torch
from children import run

PROGRAM = Path(__file__).with_name("sharded.py")


def test_processes():
    assert "as one process" in run([sys.executable, PROGRAM, "cpu", "2", "3"]).stdout


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")
def test_processes_on_gpus():
    assert "as one process" in run([sys.executable, PROGRAM, "cuda", "2"]).stdout
