# SPDX-License-Identifier: Apache-2.0
"""How many CPU threads calls take."""

from strobe import _core


def set_threads(threads: int) -> None:
    """The number of CPU threads of every call that does not give ``threads``, in all threads of the process.

    threads is from 1 to 4096; 0 takes back what was set before. Results do not depend on it. Raises TypeError for what
    is no integer, ValueError for what is out of range.

    Example:

        strobe.set_threads(4)
        out = strobe.attention(q, k, v)              # on 4 threads
        out = strobe.attention(q, k, v, threads=1)   # on 1
    """
    _core.set_threads(threads)


def get_threads() -> int:
    """The number of CPU threads that a call takes now, if it does not give ``threads``.

    The first that there is of: what ``set_threads`` was given; ``torch.get_num_threads()``, if PyTorch is loaded; the
    environment variable OMP_NUM_THREADS. The last two count up to the number of hardware threads that the process may
    run on (its affinity mask, which ``taskset`` sets), which is the number where there is none of the three. JAX's
    calls do not ask PyTorch.
    """
    return _core.get_threads()
