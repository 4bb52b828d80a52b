# SPDX-License-Identifier: Apache-2.0
"""Copies of arrays between pages without access, in other layouts, with canaries in the gaps."""

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
NO_ACCESS, READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
FAILED = ctypes.c_void_p(-1).value
CANARY = 0xFF  # NaN in every floating-point dtype

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Pages:
    """`size` bytes whose first lies directly behind a page without access, or whose last directly before one."""

    def __init__(self, size, at_end):
        used = -(-size // PAGE) * PAGE
        self._mapped = used + 2 * PAGE
        self._base = libc.mmap(None, self._mapped, NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if self._base in (None, FAILED):
            raise MemoryError
        first = self._base + PAGE
        if used and libc.mprotect(first, used, READ_WRITE) != 0:
            raise MemoryError
        start = first + used - size if at_end else first
        self.bytes = np.frombuffer((ctypes.c_uint8 * size).from_address(start), np.uint8)

    def close(self):
        libc.munmap(self._base, self._mapped)


def random_strides(shape, rng):
    """In elements, the last axis innermost, the others in any order, with gaps or none; and the span of all of them."""
    leading = [int(axis) for axis in rng.permutation(max(len(shape) - 1, 0))]
    gaps = int(rng.integers(0, 2))
    strides, step = [1] * len(shape), 1
    for axis in [len(shape) - 1, *leading] if shape else []:
        strides[axis] = step
        step = step * max(shape[axis], 1) + gaps * int(rng.integers(0, 10))
    empty = 0 in shape
    return strides, 0 if empty else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


class Guarded:
    """A copy of an array."""

    def __init__(self, values, at_end, rng):
        values = np.asarray(values)
        size = values.dtype.itemsize
        strides, span = random_strides(values.shape, rng)
        self._pages = Pages(span * size, at_end)
        self._pages.bytes.flags.writeable = True
        self._pages.bytes[:] = CANARY
        in_bytes = [stride * size for stride in strides]
        self.array = np.ndarray(values.shape, values.dtype, self._pages.bytes, 0, in_bytes)
        self.array[...] = values
        inside = np.zeros(span * size, np.uint8)
        np.ndarray((*values.shape, size), np.uint8, inside, 0, [*in_bytes, 1])[...] = 1
        self._outside = inside == 0
        self._before = self._pages.bytes.copy()

    def gaps_are_intact(self):
        return bool((self._pages.bytes[self._outside] == CANARY).all())

    def is_unchanged(self):
        return bool((self._pages.bytes == self._before).all())

    def close(self):
        self.array = None
        self._pages.close()
