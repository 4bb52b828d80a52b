# SPDX-License-Identifier: Apache-2.0
"""strobe.jax on several devices; jax_devices.py has the cases, which a process with four devices on one CPU runs."""

import os
import sys
from pathlib import Path

import children
import pytest

CASES = Path(__file__).with_name("jax_devices.py")


@pytest.mark.parametrize(
    "case",
    [
        *("compiler_places", "types_place", "what_is_gathered", "dropout", "packed", "eight_bits"),
        *("forward_mode", "shard_map", "partly_manual", "both_kinds", "vmap", "export"),
    ],
)
def test_four_devices(case):
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    children.run([sys.executable, CASES, case], env=os.environ | devices, timeout=550)
