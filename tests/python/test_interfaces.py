# SPDX-License-Identifier: Apache-2.0
"""Objects whose array interfaces are broken: an error that names the tensor, whatever they say, and never a crash.

Each interface is tried in a process of its own, which prints a line for each object that a call refused.
"""

import ctypes
import sys

import children
import numpy as np
import pytest

WRONG = [
    *(None, True, 0, 1, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), float("nan"), 1j),
    *("", "a", "abcd", "<f4", "float32", b"", b"abcd", object(), object, NotImplemented, ...),
    *((), (1,), (1, 2), (1, 1, 1), (1, 1, 1, 1, 1), (1,) * 70, ("a",) * 4, (None,) * 4, (1.5,) * 4, (-1, 1, 1, 4)),
    *((2**62,) * 4, (2**63,) * 4, (0, 2**62, 2**62, 4), (1, 1, 1, -4)),
    *([], [1], [1, 1, 1, 4], {}, {"shape": 1}, set(), range(4), np.float32(1), np.zeros(3), [("", "<f4")] * 3),
]


class Interface:
    """Speaks NumPy's array interface alone."""

    def __init__(self, interface, **attributes):
        self.__array_interface__ = interface
        self.__dict__.update(attributes)


class Capsule:
    """Speaks DLPack alone: gives `capsule`, and says `device`."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **keywords):
        return self.capsule

    def __dlpack_device__(self):
        return self.device


class Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack before version 1, without a deleter."""

    _fields_ = (
        *(("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32)),
        *(("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)),
        *(("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64))),
        *(("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)),
    )


def refused(name, given):
    """Calls with `given` as q, as out and as lengths; each refusal is a TypeError or ValueError of one line."""
    import strobe

    x = np.ones((1, 1, 1, 4), np.float32)
    calls = {
        "q": lambda: strobe.attention(given, x, x, out=x.copy()),
        "o": lambda: strobe.attention(x, x, x, out=given),
        "seqused_k": lambda: strobe.attention(x, x, x, seqused_k=given),
    }
    for role, call in calls.items():
        try:
            call()
        except (TypeError, ValueError) as error:
            assert "\n" not in str(error), (name, role, str(error))
            assert "nanobind" not in str(error), (name, role, str(error))
            print(name, role, type(error).__name__, error, flush=True)


def array_interface():
    x = np.ones((1, 1, 1, 4), np.float32)
    right = {"shape": x.shape, "typestr": "<f4", "data": (x.ctypes.data, False), "strides": None, "version": 3}
    refused("right", Interface(right))
    for field in right:
        refused(f"{field} missing", Interface({name: value for name, value in right.items() if name != field}))
        for number, value in enumerate(WRONG):
            # An address is believed, and so is a shape that the call accepts: neither can be checked.
            if field != "data":
                refused(f"{field} {number}", Interface(right | {field: value}))
    for number, value in enumerate(WRONG):
        refused(f"interface {number}", Interface(value))
        for attribute in ("dtype", "shape", "strides", "ndim", "flags"):
            refused(f"{attribute} {number}", Interface(right, **{attribute: value}))
        if not isinstance(value, int) or value in (0, 2**64):
            refused(f"address {number}", Interface(right | {"data": (value, False)}))
            refused(f"data {number}", Interface(right | {"data": value}))


def dlpack():
    x = np.ones((1, 1, 1, 4), np.float32)
    for number, value in enumerate(WRONG):
        refused(f"capsule {number}", Capsule(value))
        refused(f"device {number}", Capsule(x.__dlpack__(), value))
        refused(f"not callable {number}", type("Producer", (), {"__dlpack__": value})())
        refused(f"device not callable {number}", type("Producer", (), {"__dlpack__": 0, "__dlpack_device__": value})())
        refused(f"exchange {number}", type("Producer", (), {"__dlpack_c_exchange_api__": value})())
        refused(f"cuda {number}", type("Producer", (), {"__cuda_array_interface__": value})())
    used = x.__dlpack__()
    np.from_dlpack(Capsule(used))
    refused("used", Capsule(used))


def dlpack_fields():
    data = np.ones(16, np.float32)
    shape = (ctypes.c_int64 * 4)(1, 1, 1, 4)
    right = {"data": data.ctypes.data, "device_type": 1, "ndim": 4, "code": 2, "bits": 32, "lanes": 1, "shape": shape}
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

    def tried(name, **fields):
        tensor = Tensor(**right | fields)
        refused(name, Capsule(make(ctypes.addressof(tensor), b"dltensor", None)))

    tried("right")
    tried("no data", data=None)
    tried("no shape", shape=None)
    tried("unaligned", byte_offset=1)
    for value in (-(2**31), -1, 0, 1, 3, 5, 64, 2**31 - 1):
        tried(f"ndim {value}", ndim=value)
        tried(f"device {value}", device_type=value if value != 1 else 0)
        tried(f"device index {value}", device_type=2, device_index=value)
    for value in (0, 1, 2, 3, 16, 64, 255):
        tried(f"code {value}", code=value if value != 2 else 3)
        tried(f"bits {value}", bits=value)
        tried(f"lanes {value}", lanes=value if value != 1 else 65535)
    for extent in (-(2**63), -1, 2**31, 2**62, 2**63 - 1):
        for axis in range(4):
            extents = (ctypes.c_int64 * 4)(1, 1, 1, 4)
            extents[axis] = extent
            tried(f"extent {axis} {extent}", shape=extents)
            strides = (ctypes.c_int64 * 4)(4, 4, 4, 1)
            strides[axis] = extent
            tried(f"stride {axis} {extent}", strides=strides, shape=(ctypes.c_int64 * 4)(2, 2, 2, 4))
    tried("too many elements", shape=(ctypes.c_int64 * 4)(*[2**62] * 4))
    tried("no elements", shape=(ctypes.c_int64 * 4)(0, 2**62, 2**62, 2**62))


# How many objects of each kind must be refused, in one role at least.
PARTS = {"array_interface": 250, "dlpack": 250, "dlpack_fields": 80}


@pytest.mark.parametrize("part", PARTS)
def test_broken_objects_are_refused(part):
    ended = children.run([sys.executable, __file__, part], check=False)
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    lines = ended.stdout.splitlines()
    assert not any(line.startswith("right q") for line in lines), lines[:3]
    assert len({line.rpartition(" q ")[0] for line in lines if " q " in line}) > PARTS[part]


if __name__ == "__main__":
    {"array_interface": array_interface, "dlpack": dlpack, "dlpack_fields": dlpack_fields}[sys.argv[1]]()
