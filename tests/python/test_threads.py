# SPDX-License-Identifier: Apache-2.0
"""How many threads a call takes, and what says so. Each part runs in a process of its own, whose settings they are.

A plan names the number of threads that its call takes, so that no machine needs to have as many.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import children
import numpy as np
import pytest

SHAPE = (1, 256, 4, 32)
HARDWARE = len(os.sched_getaffinity(0))


def planned(**options):
    import strobe

    text = strobe.explain(SHAPE, SHAPE, SHAPE, **options)
    return int(re.search(r"^threads +(\d+)", text, re.MULTILINE).group(1))


def running():
    """Threads of this process."""
    return len(list(Path("/proc/self/task").iterdir()))


def check(threads):
    """All that there is to ask says the same number."""
    import strobe

    assert planned() == strobe.get_threads() == strobe.info()["threads"] == threads


def default():
    check(HARDWARE)


def affinity():
    """Of the process as it is when it is called."""
    check(HARDWARE)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    check(1)


def one():
    """What the environment, or taskset, leaves."""
    check(1)


def chosen():
    import strobe

    strobe.set_threads(3)
    check(3)
    assert planned(threads=5) == 5
    assert planned(threads=0) == 3
    strobe.set_threads(np.int64(7))
    check(7)
    strobe.set_threads(0)
    check(1)


def pytorch():
    """PyTorch's number is asked for in each call, and comes before the environment's."""
    import torch

    torch.set_num_threads(1)
    check(1)
    torch.set_num_threads(2)
    check(min(2, HARDWARE))
    torch.set_num_threads(HARDWARE + 1)
    check(HARDWARE)
    import strobe

    strobe.set_threads(4)
    check(4)


def in_calls():
    """Calls of both passes take as many threads as a plan says: none is started for 1."""
    import strobe

    before = running()
    x = np.ones((2, 512, 4, 32), np.float32)
    for threads in (0, 1):
        o, lse = strobe.attention(x, x, x, return_lse=True, threads=threads)
        strobe.attention_backward(o, x, x, x, o, lse, threads=threads)
        strobe.merge([(o, lse)], threads=threads)
        strobe.quantize(x, x, x, threads=threads)
    assert running() == before
    strobe.set_threads(2)
    strobe.attention(x, x, x)
    assert HARDWARE == 1 or running() > before


def jax():
    """Calls of compiled programs start none either."""
    import jax.numpy as jnp
    import strobe.jax

    x = jnp.ones((2, 512, 4, 32))
    np.asarray(x + x)
    x = np.asarray(strobe.jax.attention(x[:, :1], x, x))  # XLA's own threads are there now
    before = running()
    for _ in range(3):
        np.asarray(strobe.jax.attention(*(jnp.ones((2, 512, 4, 32)) for _ in range(3))))
    assert running() == before


def at_once():
    """Results do not depend on what other threads set while a call runs."""
    import strobe

    x = np.random.default_rng(1).standard_normal((2, 200, 4, 32), np.float32)
    want = strobe.attention(x, x, x)

    def work(index):
        strobe.set_threads(1 + index % 4)
        assert 1 <= strobe.get_threads() <= 4
        return (strobe.attention(x, x, x) == want).all()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(200)))


PARTS = [
    (default, {}),
    (affinity, {}),
    (one, {"OMP_NUM_THREADS": "1"}),
    (one, {"OMP_NUM_THREADS": "1,4"}),
    (default, {"OMP_NUM_THREADS": "1000"}),
    (default, {"OMP_NUM_THREADS": "0"}),
    (default, {"OMP_NUM_THREADS": "many"}),
    (chosen, {"OMP_NUM_THREADS": "1"}),
    (pytorch, {"OMP_NUM_THREADS": "1"}),
    (in_calls, {"OMP_NUM_THREADS": "1"}),
    (jax, {"OMP_NUM_THREADS": "1"}),
    (at_once, {}),
]


@pytest.mark.parametrize(("part", "variables"), PARTS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_part(part, variables):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | variables
    children.run([sys.executable, __file__, part.__name__], env=environment)


def test_taskset():
    cpu = min(os.sched_getaffinity(0))
    children.run(["taskset", "--cpu-list", str(cpu), sys.executable, __file__, "one"])


@pytest.mark.parametrize(
    ("threads", "error", "message"),
    [
        (-1, ValueError, "threads is -1: it must be from 1 to 4096, or 0 for the default"),
        (4097, ValueError, "threads is 4097: it must be from 1 to 4096, or 0 for the default"),
        (2**40, ValueError, "threads is 1099511627776: it must fit 32 bits"),
        (1.0, TypeError, "threads is of type float: it must be an integer"),
        (True, TypeError, "threads is of type bool: it must be an integer"),
        ("2", TypeError, "threads is of type str: it must be an integer"),
        (None, TypeError, "threads is of type NoneType: it must be an integer"),
    ],
)
def test_set_threads_rejects(threads, error, message):
    import strobe

    before = strobe.get_threads()
    with pytest.raises(error) as caught:
        strobe.set_threads(threads)
    assert str(caught.value) == message
    assert strobe.get_threads() == before


if __name__ == "__main__":
    globals()[sys.argv[1]]()
