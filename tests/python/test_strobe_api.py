# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu/strobe_api.py, by which scripts on GPU machines call the C ABI, on CPU tensors.

STROBE_LIBRARY names the libstrobe.so to call.
"""

import ctypes
import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import strobe
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "gpu"


@pytest.fixture(scope="module")
def api():
    if "STROBE_LIBRARY" not in os.environ:
        pytest.skip("STROBE_LIBRARY names no libstrobe.so")
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("strobe_api")
    sys.path.remove(str(SCRIPTS))


def tensors(count, *shape):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(*shape, generator=generator) for _ in range(count)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": "bottom_right", "window": (40, 0), "scale": 0.3},
        {"causal": "top_left", "softcap": 2.0, "sink": torch.tensor([0.5, -1.0])},
        {"dropout": 0.25, "seed": 3, "offset": 9, "chunk": 50, "seqused_k": torch.tensor([60, 100], dtype=torch.int32)},
    ],
    ids=str,
)
def test_both_passes_are_those_of_the_python_package(api, options):
    q, k, v, do = tensors(4, 2, 100, 2, 32)
    o, lse, dq, dk, dv = torch.empty_like(q), torch.empty(2, 2, 100), *(torch.empty_like(q) for _ in range(3))
    api.Forward(q, k, v, o, lse, **options).run()
    api.Backward(q, k, v, o, lse, do, dq, dk, dv, deterministic=True, **options).run()

    want, want_lse = strobe.attention(q, k, v, return_lse=True, **options)
    gradients = strobe.attention_backward(do, q, k, v, want, want_lse, **options)
    for ours, theirs in zip((o, lse, dq, dk, dv), (want, want_lse, *gradients[:3]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_the_library_says(api):
    q, k, v = tensors(3, 1, 8, 1, 32)
    forward = api.Forward(q, k, v, torch.empty_like(q))
    assert "cpu" in forward.explain()
    with pytest.raises(RuntimeError, match="softcap"):
        api.Forward(q, k, v, torch.empty_like(q), softcap=-1.0)
    with pytest.raises(TypeError, match="no option temperature"):
        api.Forward(q, k, v, torch.empty_like(q), temperature=1.0)


def test_a_header_that_is_not_understood_is_an_error(api):
    header = importlib.import_module("c_header").Header
    struct = header("#define N 2\ntypedef struct s { int32_t a, b; float c[N]; void* d; /* e */ } s;").structs["s"]
    assert [name for name, _ in struct._fields_] == ["a", "b", "c", "d"]
    assert (ctypes.sizeof(struct), struct.d.offset) == (24, 16)
    for declaration in ("int32_t a : 3;", "int32_t (*f)(void);", "int32_t a[2][2];"):
        with pytest.raises(ValueError, match="not understood"):
            header(f"typedef struct s {{ {declaration} }} s;")
    with pytest.raises(KeyError):
        header("typedef struct s { unknown_t a; } s;")
