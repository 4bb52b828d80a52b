# SPDX-License-Identifier: Apache-2.0
"""strobe.jax.context_parallel: what four devices compute together is what one computes."""

import os
import sys
from pathlib import Path

import children
import jax.numpy as jnp
import numpy as np
import pytest
from strobe.jax import context_parallel


def test_four_devices():
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    program = Path(__file__).with_name("jax_context_parallel.py")
    assert "as on one device" in children.run([sys.executable, program], env=os.environ | devices, timeout=550).stdout


def test_arrange_and_restore():
    x = jnp.arange(2 * 24).reshape(2, 24)
    arranged = context_parallel.arrange(x, 3)
    assert arranged[0, :8].tolist() == [0, 1, 2, 3, 20, 21, 22, 23]
    np.testing.assert_array_equal(context_parallel.restore(arranged, 3), x)
    np.testing.assert_array_equal(context_parallel.arrange(x, 3, layout="contiguous"), x)
    with pytest.raises(ValueError, match="there are 24 rows: their number must be a multiple of 10"):
        context_parallel.arrange(x, 5)
