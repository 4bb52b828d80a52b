"""Strobe's C ABI for CUDA tensors that PyTorch holds: for the checks and measurements of this folder.

The library is named by STROBE_LIBRARY, or found as build/release/lib/libstrobe.so.
"""

import ctypes
import os
from pathlib import Path

import torch

FLOAT16, BFLOAT16, FLOAT32, INT32 = 1, 2, 0, 3
DTYPES = {torch.float16: FLOAT16, torch.bfloat16: BFLOAT16, torch.float32: FLOAT32, torch.int32: INT32}
CAUSAL = {None: 0, "bottom_right": 1, "top_left": 2}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("scale", ctypes.c_float),
        ("has_scale", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("has_window", ctypes.c_int32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("softcap", ctypes.c_float),
        ("dropout", ctypes.c_float),
        ("chunk", ctypes.c_int64),
        ("deterministic", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class Sequences(ctypes.Structure):
    _fields_ = [
        ("cu_seqlens_q", Tensor),
        ("cu_seqlens_k", Tensor),
        ("seqused_q", Tensor),
        ("seqused_k", Tensor),
        ("max_seqlen_q", ctypes.c_int64),
        ("max_seqlen_k", ctypes.c_int64),
    ]


class ScoreModifiers(ctypes.Structure):
    _fields_ = [
        ("alibi_slopes", Tensor),
        ("bias", Tensor),
        ("sink", Tensor),
        ("block_mask", Tensor),
        ("block_size", ctypes.c_int64),
    ]


class RandomState(ctypes.Structure):
    _fields_ = [("seed", ctypes.c_uint64), ("offset", ctypes.c_uint64)]


class ForwardArguments(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("sequences", Sequences),
        ("q_descale", Tensor),
        ("k_descale", Tensor),
        ("v_descale", Tensor),
        ("page_table", Tensor),
        ("modifiers", ScoreModifiers),
        ("random", RandomState),
        ("max_logits", Tensor),
    ]


class Execution(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("engine", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_for_context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
    ]


def _library():
    here = Path(__file__).resolve().parents[2] / "build/release/lib/libstrobe.so"
    library = ctypes.CDLL(os.environ.get("STROBE_LIBRARY", str(here)))
    library.strobe_last_error.restype = ctypes.c_char_p
    library.strobe_plan_explain.restype = ctypes.c_char_p
    return library


LIBRARY = _library()


def view(tensor):
    """The tensor as the C ABI sees it; None stands for not given."""
    if tensor is None:
        return Tensor()
    pad = 4 - tensor.dim()
    return Tensor(
        tensor.data_ptr(),
        DTYPES[tensor.dtype],
        1,
        tensor.device.index or 0,
        tensor.dim(),
        (ctypes.c_int64 * 4)(*tensor.shape, *[0] * pad),
        (ctypes.c_int64 * 4)(*tensor.stride(), *[0] * pad),
    )


def check(code):
    if code != 0:
        raise RuntimeError(LIBRARY.strobe_last_error().decode())


class Forward:
    """A planned forward on given tensors; run() enqueues it on the current stream."""

    def __init__(
        self,
        q,
        k,
        v,
        o,
        lse=None,
        *,
        causal=None,
        window=None,
        softcap=0.0,
        scale=None,
        chunk=0,
        alibi_slopes=None,
        sink=None,
        max_logits=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        seqused_q=None,
        seqused_k=None,
        max_seqlen_q=0,
        max_seqlen_k=0,
    ):
        # kept alive
        self.tensors = (
            q,
            k,
            v,
            o,
            lse,
            cu_seqlens_q,
            cu_seqlens_k,
            seqused_q,
            seqused_k,
            alibi_slopes,
            sink,
            max_logits,
        )
        sequences = Sequences(
            view(cu_seqlens_q), view(cu_seqlens_k), view(seqused_q), view(seqused_k), max_seqlen_q, max_seqlen_k
        )
        self.arguments = ForwardArguments(
            ctypes.sizeof(ForwardArguments), view(q), view(k), view(v), view(o), view(lse), sequences
        )
        self.arguments.modifiers = ScoreModifiers(alibi_slopes=view(alibi_slopes), sink=view(sink))
        self.arguments.max_logits = view(max_logits)
        left, right = window if window is not None else (-1, -1)
        self.options = Options(
            ctypes.sizeof(Options),
            scale or 0.0,
            1 if scale is not None else 0,
            CAUSAL[causal],
            1 if window is not None else 0,
            left,
            right,
            softcap,
            chunk=chunk,
        )
        self.execution = Execution(ctypes.sizeof(Execution))
        self.plan = ctypes.c_void_p()
        check(
            LIBRARY.strobe_plan_forward(
                ctypes.byref(self.arguments),
                ctypes.byref(self.options),
                ctypes.byref(self.execution),
                ctypes.byref(self.plan),
            )
        )
        self.byrefs = (ctypes.byref(self.arguments), ctypes.byref(self.execution))

    def __del__(self):
        if getattr(self, "plan", None):
            LIBRARY.strobe_plan_destroy(self.plan)

    def explain(self):
        return LIBRARY.strobe_plan_explain(self.plan).decode()

    def run(self):
        self.execution.stream = torch.cuda.current_stream().cuda_stream
        check(LIBRARY.strobe_plan_run_forward(self.plan, *self.byrefs))
