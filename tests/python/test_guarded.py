# SPDX-License-Identifier: Apache-2.0
"""Some of the calls of guarded_calls.py, in a process of their own: a stray access would end it."""

import ctypes
import os
import sys
from pathlib import Path

import children
import numpy as np
import pytest
from guarded_memory import Guarded

HERE = Path(__file__).parent


def test_calls_between_guard_pages():
    program = HERE / "guarded_calls.py"
    children.run([sys.executable, program, "--count", "420", "--verbose"])


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("access", ["read", "write"])
def test_a_stray_access_ends_the_program(at_end, access):
    program = f"""
import ctypes, numpy as np
from guarded_memory import Guarded
array = Guarded(np.ones((2, 3), np.float16), {at_end}, np.random.default_rng(2)).array
beyond = array[-1, -1:].ctypes.data + 2 if {at_end} else array.ctypes.data - 1
print("before", flush=True)
ctypes.string_at(beyond, 1) if {access == "read"} else ctypes.memset(beyond, 0, 1)
print("after")
"""
    result = children.run([sys.executable, "-c", program], check=False, env=os.environ | {"PYTHONPATH": str(HERE)})
    assert result.stdout == "before\n"
    assert result.returncode != 0


def test_a_stray_write_between_elements_is_found():
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(20):
        guarded = Guarded(np.ones((3, 4), np.float32), True, rng)
        assert guarded.gaps_are_intact()
        if guarded.array.strides[0] > 16:
            ctypes.memset(guarded.array.ctypes.data + 16, 0, 1)
            assert not guarded.gaps_are_intact()
            found += 1
        guarded.close()
    assert found > 0
