# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's own kernels, to measure beside: compiled unchanged into the library that FA3_LIBRARY names.

Its functions, fa3_forward_bf16_{head_dim}_{causal} and fa3_backward_bf16_{head_dim}_{causal}[_deterministic], take a
Call. They are of bfloat16 and head_dim 64, 128 and 256; the deterministic ones of 64 and 128; those whose name ends in
_grouped, of fewer key heads, of 128.
"""

import ctypes
import os

import torch

_POINTERS = (
    "q k v o lse d_o dq dk dv dq_accum d_sum lse_log2 semaphore q_descale k_descale v_descale o_accum lse_accum "
    "dk_accum dv_accum"
)
_NUMBERS = "batch seqlen_q seqlen_k heads heads_k head_dim seqlen_q_rounded multiprocessors causal splits"


class Call(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in _POINTERS.split()],
        *[(name, ctypes.c_longlong) for name in _NUMBERS.split()],
        ("stream", ctypes.c_void_p),
    ]


def is_available():
    return "FA3_LIBRARY" in os.environ


class _Run:
    """A call on given tensors; run() enqueues it on the current stream."""

    def __init__(self, name, causal, seqlen_q_rounded, **tensors):
        q, k = tensors["q"], tensors["k"]
        self._tensors = tensors  # kept alive
        self._call = Call(**{name: tensor.data_ptr() for name, tensor in tensors.items()})
        self._call.batch, self._call.seqlen_q, self._call.heads, self._call.head_dim = q.shape
        self._call.seqlen_k, self._call.heads_k = k.shape[1], k.shape[2]
        self._call.seqlen_q_rounded, self._call.causal = seqlen_q_rounded, int(causal)
        self._call.multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
        self._function = getattr(ctypes.CDLL(os.environ["FA3_LIBRARY"]), name)

    def run(self):
        self._call.stream = torch.cuda.current_stream().cuda_stream
        self._function(ctypes.byref(self._call))


def forward(q, k, v, o, lse, *, causal):
    semaphore = torch.zeros(64, dtype=torch.int32, device=q.device)
    name = f"fa3_forward_bf16_{q.shape[3]}_{int(causal)}"
    return _Run(name, causal, 0, q=q, k=k, v=v, o=o, lse=lse, semaphore=semaphore)


def backward(q, k, v, o, lse, d_o, dq, dk, dv, *, causal, deterministic=False):
    """With its workspace, allocated once: sums of dQ, D and LSE of rows rounded up to its blocks, semaphores."""
    batch, seqlen, heads, head_dim = q.shape
    block_m = {64: 128, 128: 64 if causal else 80, 256: 64}[head_dim]
    blocks = -(-seqlen // block_m)
    rows = (batch, heads, blocks * block_m)
    suffix, sums = "_deterministic" if deterministic else "", {}
    if k.shape[2] != heads:
        rows_k = (batch, k.shape[2], -(-k.shape[1] // 128) * 128, head_dim)
        suffix = "_grouped"
        sums = {name: torch.zeros(rows_k, device=q.device) for name in ("dk_accum", "dv_accum")}
    return _Run(
        f"fa3_backward_bf16_{head_dim}_{int(causal)}{suffix}",
        *(causal, blocks * block_m),
        **{"q": q, "k": k, "v": v, "o": o, "lse": lse, "d_o": d_o, "dq": dq, "dk": dk, "dv": dv},
        dq_accum=torch.zeros(*rows, head_dim, device=q.device),
        d_sum=torch.zeros(rows, device=q.device),
        lse_log2=torch.zeros(rows, device=q.device),
        semaphore=torch.zeros(max(64, blocks * batch * heads), dtype=torch.int32, device=q.device),
        **sums,
    )
