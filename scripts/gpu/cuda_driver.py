# SPDX-License-Identifier: Apache-2.0
"""Kernels and tensor maps through the CUDA driver, for scripts that launch without the library."""

import ctypes
import functools
from pathlib import Path

import torch

driver = ctypes.CDLL("libcuda.so.1")
P, I32, I64, U32, U64, F32 = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_longlong,
    ctypes.c_uint,
    ctypes.c_ulonglong,
    ctypes.c_float,
)
MAX_SMEM = 227 * 1024


def check(code, what):
    if code != 0:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: {text.value}")


class Attribute(ctypes.Structure):
    _fields_ = [("id", I32), ("pad", I32), ("value", U32 * 16)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", U32 * 3),
        ("block", U32 * 3),
        ("smem", U32),
        ("stream", P),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", U32),
    ]


class Kernel:
    def __init__(self, folder, entry, smem=0):
        image = (Path(folder) / entry["cubin"]).read_bytes()
        self.module, self.function = P(), P()
        check(driver.cuModuleLoadData(ctypes.byref(self.module), image), entry["cubin"])
        check(
            driver.cuModuleGetFunction(ctypes.byref(self.function), self.module, entry["symbol"].encode()),
            entry["symbol"],
        )
        self.smem = smem
        if smem:
            check(driver.cuFuncSetAttribute(self.function, 8, smem), f"{smem} bytes of shared memory")

    def bind(self, grid, threads, *parameters, overlaps=True, cluster=1):
        """A launch with fixed parameters."""
        attributes = (Attribute * 2)()
        count = 0
        if overlaps:
            attributes[count].id, attributes[count].value[0] = 6, 1
            count += 1
        if cluster > 1:
            attributes[count].id = 4
            attributes[count].value[:3] = [cluster, 1, 1]
            count += 1
        config = LaunchConfig((U32 * 3)(*grid), (U32 * 3)(threads, 1, 1), self.smem, None, attributes, count)
        pointers = (P * len(parameters))(*(ctypes.addressof(x) for x in parameters))
        keep = (parameters, attributes)

        def run(stream, keep=keep):
            config.stream = stream
            check(driver.cuLaunchKernelEx(ctypes.byref(config), self.function, pointers, None), "launch")

        return run


def batched(x):
    """Packed [total, heads, columns] as a batch of 1."""
    return x if x.dim() == 4 else x[None]


@functools.cache
def any_memory():
    """What is mapped, and never read, where a tensor has no elements."""
    return torch.empty(1024, device="cuda")


def tensor_map(x, box_rows, bound):
    """{column, row, offset, head, batch}; boxes of 64 columns. bound: of the row axis of varlen variants, else None."""
    b, rows, h, d = batched(x).shape
    row_stride, head_stride = (2 * (x.stride(i) if x.shape[i] > 1 else 8) for i in (-3, -2))
    batch_stride = 2 * x.stride(0) if x.dim() == 4 and b > 1 else 16
    data = x.data_ptr() or any_memory().data_ptr()
    row_axis, offset_axis = max(rows, 1), 1
    if bound is not None:
        data -= bound * row_stride
        row_axis, offset_axis = max(bound, 1), rows + 1
    extents = (U64 * 5)(d, row_axis, offset_axis, h, max(b, 1))
    strides = (U64 * 4)(row_stride, row_stride, head_stride, batch_stride)
    box = (U32 * 5)(64, box_rows, 1, 1, 1)
    ones = (U32 * 5)(1, 1, 1, 1, 1)
    raw = (ctypes.c_byte * 192)()
    base = (ctypes.addressof(raw) + 63) // 64 * 64
    dtype = 9 if x.dtype == torch.bfloat16 else 6
    check(driver.cuTensorMapEncodeTiled(P(base), dtype, 5, P(data), extents, strides, box, ones, 0, 3, 3, 0), "map")
    return ctypes.string_at(base, 128)
