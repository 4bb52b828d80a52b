# SPDX-License-Identifier: Apache-2.0
"""Strobe's C ABI for tensors that PyTorch holds: for the checks and measurements on a GPU.

STROBE_LIBRARY names the library, or it is build/release/lib/libstrobe.so; its structs come from the header that
STROBE_HEADER names, or include/strobe/strobe.h, and strobe_sparse.h beside it.
"""

import ctypes
import os
from pathlib import Path

import torch
from c_header import Header

_PROJECT = Path(__file__).resolve().parents[2]
_PATH = Path(os.environ.get("STROBE_HEADER", _PROJECT / "include/strobe/strobe.h"))
_HEADER = Header(_PATH.read_text() + _PATH.with_name("strobe_sparse.h").read_text())
_LIBRARY = ctypes.CDLL(os.environ.get("STROBE_LIBRARY", str(_PROJECT / "build/release/lib/libstrobe.so")))
_LIBRARY.strobe_last_error.restype = ctypes.c_char_p
_LIBRARY.strobe_plan_explain.restype = ctypes.c_char_p

_TENSOR = _HEADER.structs["strobe_tensor"]
_ROTATION = _HEADER.structs["strobe_rotation"]
_DTYPES = {
    getattr(torch, name.removeprefix("STROBE_").lower()): _HEADER.constants[name]
    for name in (
        "STROBE_FLOAT32",
        "STROBE_FLOAT16",
        "STROBE_BFLOAT16",
        "STROBE_INT32",
        "STROBE_UINT8",
        "STROBE_INT8",
        "STROBE_INT64",
    )
}
_DTYPES[torch.float8_e4m3fn] = _HEADER.constants["STROBE_FLOAT8_E4M3"]
_CAUSAL = {name: _HEADER.constants[f"STROBE_CAUSAL_{str(name).upper()}"] for name in (None, "bottom_right", "top_left")}


def _view(tensor):
    """The tensor as the C ABI sees it; None stands for not given."""
    view = _TENSOR()
    if tensor is not None:
        view.data, view.dtype, view.rank = tensor.data_ptr(), _DTYPES[tensor.dtype], tensor.dim()
        view.device_type = _HEADER.constants[f"STROBE_{tensor.device.type.upper()}"]
        view.device_index = tensor.device.index or 0
        view.shape[: tensor.dim()], view.strides[: tensor.dim()] = tensor.shape, tensor.stride()
    return view


def _check(code):
    if code != _HEADER.constants["STROBE_OK"]:
        raise RuntimeError(_LIBRARY.strobe_last_error().decode())


def _struct(name):
    struct = _HEADER.structs[name]()
    struct.struct_size = ctypes.sizeof(struct)
    return struct


class _Call:
    """A planned call on given tensors; run() enqueues it on the current stream."""

    _PASS: str

    def __init__(self, tensors, causal, window, options):
        self._tensors = (tensors, options)  # kept alive
        self._arguments = _struct(f"strobe_{self._PASS}_arguments")
        self._execution = _struct("strobe_execution")
        settings = _struct("strobe_options")
        for name, tensor in tensors.items():
            setattr(self._arguments, name, _view(tensor))
        settings.causal = _CAUSAL[causal]
        if window is not None:
            settings.has_window, (settings.window_left, settings.window_right) = 1, window
        arguments = self._arguments
        for name, value in options.items():
            structs = (settings, arguments.sequences, arguments.modifiers, arguments.random, arguments, self._execution)
            self._set(structs, name, value)
        self._cuda = tensors["q"].is_cuda
        self._plan = ctypes.c_void_p()
        places = (ctypes.byref(x) for x in (arguments, settings, self._execution, self._plan))
        _check(getattr(_LIBRARY, f"strobe_plan_{self._PASS}")(*places))
        self._run = getattr(_LIBRARY, f"strobe_plan_run_{self._PASS}")
        self._run_arguments = (self._plan, ctypes.byref(arguments), ctypes.byref(self._execution))

    @staticmethod
    def _set(structs, name, value):
        """Sets the field of this name in the struct that has it; None leaves the default."""
        struct = next((struct for struct in structs if name in dict(struct._fields_)), None)
        if struct is None:
            raise TypeError(f"the C ABI has no option {name}")
        if value is None:
            return
        kind = dict(struct._fields_)[name]
        if name == "engine":
            value = _HEADER.constants[f"STROBE_ENGINE_{value.upper()}"]
        if kind is ctypes.c_char_p:
            value = value.encode()
        if kind is _ROTATION:
            value = _ROTATION(1, 0, value)
        setattr(struct, name, _view(value) if kind is _TENSOR else value)
        if f"has_{name}" in dict(struct._fields_):
            setattr(struct, f"has_{name}", 1)

    def __del__(self):
        if getattr(self, "_plan", None):
            _LIBRARY.strobe_plan_destroy(self._plan)

    def explain(self):
        return _LIBRARY.strobe_plan_explain(self._plan).decode()

    def run(self):
        if self._cuda:
            self._execution.stream = torch.cuda.current_stream().cuda_stream
        _check(self._run(*self._run_arguments))


class Forward(_Call):
    """Writes o, and lse where it is given. Options are the fields of strobe.h, by name: scale, softcap, chunk,
    alibi_slopes, cu_seqlens_q, ...; window is (left, right), v_rotation the seed, engine and kernels are names."""

    _PASS = "forward"

    def __init__(self, q, k, v, o, lse=None, *, causal=None, window=None, **options):
        super().__init__({"q": q, "k": k, "v": v, "o": o, "lse": lse}, causal, window, options)


class Backward(_Call):
    """Writes dq, dk and dv, from what a Forward has written and the gradient of o. Options as Forward's."""

    _PASS = "backward"

    def __init__(self, q, k, v, o, lse, do, dq, dk, dv, *, causal=None, window=None, deterministic=False, **options):
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "d_o": do, "dq": dq, "dk": dk, "dv": dv}
        super().__init__(tensors, causal, window, {"deterministic": deterministic, **options})


class Quantize:
    """8-bit tensors of q, k and v: run() writes them to `results`, which are arguments of Forward. Options: rotate_qk,
    rotate_v, center_k, seed. Packed tensors have `lengths`: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.
    With `guard` as many bytes on both sides of every result are there to see that nothing else is written."""

    def __init__(
        self,
        q,
        k,
        v,
        *,
        element="int8",
        q_scales="row",
        k_scales="group",
        v_scales="row",
        lengths=None,
        guard=0,
        **options,
    ):
        lengths = lengths or {}
        self._guarded = []
        dtype = {"int8": torch.int8, "float8_e4m3": torch.float8_e4m3fn}[element]
        units = {"q": q_scales, "k": k_scales, "v": v_scales}
        rows = {"tensor": None, "head": None, "block": 128, "group": 32, "row": 1}

        def empty(*shape, dtype=torch.float32):
            x = torch.empty(shape, dtype=dtype, device=q.device)
            if guard == 0:
                return x
            size = x.numel() * x.element_size()
            memory = torch.full((size + 2 * guard,), 0x5A, dtype=torch.uint8, device=q.device)
            self._guarded += [memory[:guard], memory[guard + size :]]
            return memory[guard : guard + size].view(dtype).view(shape)

        def extents(x, side):
            """Sequences, rows of each or at most, heads."""
            ends = lengths.get(f"cu_seqlens_{side}")
            if ends is None:
                return x.shape[:3]
            return len(ends) - 1, min(lengths.get(f"max_seqlen_{side}") or x.shape[0], x.shape[0]), x.shape[1]

        def scales(x, side, unit):
            if unit == "tensor":
                return empty(1, 1, 1)
            sequences, seqlen, heads = extents(x, side)
            return empty(sequences, heads, max(-(-seqlen // (rows[unit] or max(seqlen, 1))), 1))

        sequences, seqlen, heads = extents(k, "k")
        packed = lengths.get("cu_seqlens_k") is not None
        columns = 32 * (k.shape[0] // 32 + sequences) if packed else -(-seqlen // 32) * 32
        results = {
            "q": empty(*q.shape, dtype=dtype),
            "k": empty(*k.shape, dtype=dtype),
            "v": empty(*(() if packed else (sequences,)), heads, v.shape[-1], columns, dtype=dtype),
            "q_descale": scales(q, "q", q_scales),
            "k_descale": scales(k, "k", k_scales),
            "v_descale": scales(v, "k", v_scales),
        }
        settings = _struct("strobe_quantize_options")
        settings.element = _HEADER.constants[f"STROBE_{element.upper()}"]
        for name, unit in units.items():
            setattr(settings, f"{name}_scales", _HEADER.constants[f"STROBE_SCALE_{unit.upper()}"])
        for name, value in ({"rotate_qk": True, "rotate_v": True, "center_k": True, "seed": 0} | options).items():
            setattr(settings, name, value)
        if settings.center_k:
            sequences, seqlen, heads = extents(q, "q")
            results["q_shift"] = empty(sequences, heads, seqlen)
        arguments = _struct("strobe_quantize_arguments")
        for name, tensor in {"q": q, "k": k, "v": v}.items():
            setattr(arguments, name, _view(tensor))
            setattr(arguments, f"{name}8", _view(results[name]))
        for name in ("q_descale", "k_descale", "v_descale", "q_shift"):
            setattr(arguments, name, _view(results.get(name)))
        self.bytes = sum(x.numel() * x.element_size() for x in (q, k, v, *results.values()))  # read and written
        if settings.rotate_v:
            results["v_rotation"] = settings.seed
        for name, value in lengths.items():
            if value is not None:
                setattr(arguments.sequences, name, _view(value) if isinstance(value, torch.Tensor) else value)
                results[name] = value
        self.results = results
        self._kept = (q, k, v, lengths)
        self._structs = (arguments, settings, _struct("strobe_execution"))

    def guards_are_intact(self):
        return all((memory == 0x5A).all().item() for memory in self._guarded)

    def run(self):
        if self.results["q"].is_cuda:
            self._structs[2].stream = torch.cuda.current_stream().cuda_stream
        _check(_LIBRARY.strobe_quantize(*(ctypes.byref(x) for x in self._structs)))
        return self.results


def quantize(q, k, v, **options):
    """What Quantize writes."""
    return Quantize(q, k, v, **options).run()


def quantized_forward(x, q8, k8, v8, scales, causal):
    """What to time beside a peer's fp8 forward on `q8`, `k8` and `v8`, whose `scales` are 1: callables by name, of the
    tensors `x` that those were rounded from. e4m3 is what the FlashAttention-3 paper describes: scales by blocks, Q and
    K rotated; int8 the default, with V's scales by rows, or by blocks; bfloat16 the 16-bit forward."""
    q, k, v = (tensor.bfloat16() for tensor in x)
    mask = "bottom_right" if causal else None
    blocks = {f"{name}_scales": "block" for name in "qkv"}
    runs = {}
    for name, quantizer in (
        ("strobe_e4m3", Quantize(q, k, v, element="float8_e4m3", rotate_v=False, center_k=False, **blocks)),
        ("strobe_int8", Quantize(q, k, v)),
        ("strobe_int8_by_blocks", Quantize(q, k, v, v_scales="block")),
    ):
        forward = Forward(**quantizer.run(), o=torch.empty_like(q), causal=mask)
        runs[name] = forward.run

        def with_quantizer(quantize=quantizer.run, run=forward.run):
            quantize()
            run()

        runs[f"{name}_with_quantizer"] = with_quantizer
    runs["strobe_bfloat16"] = Forward(q, k, v, torch.empty_like(q), causal=mask).run
    return runs


class Append:
    """Writes new rows into a cache: run() enqueues it on the current stream. Options: the fields of
    strobe_append_arguments, by name."""

    def __init__(self, k_cache, v_cache, k_new, v_new, cache_seqlens, *, engine=None, **options):
        tensors = {"k_cache": k_cache, "v_cache": v_cache, "k_new": k_new, "v_new": v_new}
        tensors["cache_seqlens"] = cache_seqlens
        self._arguments = _struct("strobe_append_arguments")
        self._execution = _struct("strobe_execution")
        for name, value in (tensors | options).items():
            kind = dict(self._arguments._fields_)[name]
            setattr(self._arguments, name, _view(value) if kind is _TENSOR else value)
        if engine is not None:
            self._execution.engine = _HEADER.constants[f"STROBE_ENGINE_{engine.upper()}"]
        self._kept = (tensors, options)
        self._cuda = k_cache.is_cuda

    def run(self):
        if self._cuda:
            self._execution.stream = torch.cuda.current_stream().cuda_stream
        _check(_LIBRARY.strobe_append(ctypes.byref(self._arguments), ctypes.byref(self._execution)))


class Sparse:
    """Sparse attention of one source: forward() writes o and lse, backward() dq, dk and dv (of rows that are key and
    value, without v: dk has both), all of which are attributes. Both enqueue on the current stream."""

    def __init__(self, q, k, v, indices, head_dim_v, d_o=None):
        self.q, self.k, self.v, self.indices = q, k, v, indices
        self.o = q.new_empty(*q.shape[:-1], head_dim_v)
        self.lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device=q.device)
        self.d_o = torch.randn_like(self.o) if d_o is None else d_o
        self.dq, self.dk = torch.empty_like(q), torch.empty_like(k)
        self.dv = None if v is None else torch.empty_like(v)
        self._source = self._filled("strobe_sparse_source", "k", "v", "indices")
        self._forward = self._filled("strobe_sparse_arguments", "q", "o", "lse")
        self._forward.source = ctypes.addressof(self._source)
        self._backward = self._filled("strobe_sparse_backward_arguments", "d_o", "dq", "dk", "dv")
        self._backward.forward = ctypes.addressof(self._forward)
        self._execution = _struct("strobe_execution")

    def _filled(self, struct, *names):
        arguments = _struct(struct)
        for name in names:
            setattr(arguments, name, _view(getattr(self, name)))
        return arguments

    def _run(self, function, arguments):
        if self.q.is_cuda:
            self._execution.stream = torch.cuda.current_stream().cuda_stream
        _check(function(ctypes.byref(arguments), None, ctypes.byref(self._execution)))

    def forward(self):
        self._run(_LIBRARY.strobe_sparse_forward, self._forward)

    def backward(self):
        self._run(_LIBRARY.strobe_sparse_backward, self._backward)
