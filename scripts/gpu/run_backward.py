# SPDX-License-Identifier: Apache-2.0
"""The backward's kernels, driven without the library: for checks and measurements of variants that no plan chooses yet.

Takes the folder that pack_backward.py filled.
"""

import ctypes
import dataclasses
import json
import math
from pathlib import Path

import torch
from cuda_driver import Kernel, tensor_map

P, I32, I64, F32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_float


class Rows(ctypes.Structure):
    _fields_ = [("data", P), ("batch_stride", I64), ("row_stride", I64), ("head_stride", I64)]


class SequenceParams(ctypes.Structure):
    _fields_ = [
        *[(n, P) for n in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")],
        *[(n, I32) for n in ("batch", "sequences", "seqlen_q", "seqlen_k", "total_q")],
    ]


class VisibilityParams(ctypes.Structure):
    _fields_ = [(n, I32) for n in ("window_left", "window_right", "bottom_right", "chunk")]


class BiasParams(ctypes.Structure):
    _fields_ = [("data", P), *[(n, I64) for n in ("batch_stride", "head_stride", "row_stride")], ("in_pairs", I32)]


class DropoutParams(ctypes.Structure):
    _fields_ = [*[(n, I32) for n in ("key_low", "key_high", "offset", "threshold")], ("state", P), ("keep_factor", F32)]


class ScoreParams(ctypes.Structure):
    _fields_ = [
        ("scale_log2", F32),
        ("softcap_exponent", F32),
        ("scale", F32),
        ("alibi_slopes", P),
        ("alibi_batch_stride", I64),
        ("sink", P),
        ("bias", BiasParams),
        ("dropout", DropoutParams),
    ]


class PrepareParams(ctypes.Structure):
    _fields_ = [
        ("o", Rows),
        ("d_o", Rows),
        ("lse", P),
        ("lse_batch_stride", I64),
        ("lse_head_stride", I64),
        ("d_lse", P),
        ("d_lse_batch_stride", I64),
        ("d_lse_head_stride", I64),
        ("lse_log2", P),
        ("d_sum", P),
        ("lse_split", P),
        ("d_split", P),
        ("lse_shift", F32),
        ("lse_factor", F32),
        ("zeros", P),
        ("zeros_16_bytes", I64),
        ("sequences", SequenceParams),
        *[(n, I32) for n in ("heads", "head_dim_v", "block_m", "m_blocks", "query_blocks")],
    ]


class SinkParams(ctypes.Structure):
    _fields_ = [*[(n, P) for n in ("lse_log2", "d_sum", "sink", "d_sink")], ("rows", I64)]


class BackwardParams(ctypes.Structure):
    _fields_ = [
        *[(n, P) for n in ("lse_log2", "d_sum", "lse_split", "d_split", "dq_sum", "turns", "ds")],
        *[(n, Rows) for n in ("q", "k", "v", "d_o", "dq", "dk", "dv")],
        ("sequences", SequenceParams),
        ("visibility", VisibilityParams),
        ("score", ScoreParams),
        ("scale", F32),
        *[
            (n, I32)
            for n in (
                "total_k",
                "head_dim",
                "head_dim_v",
                "heads",
                "heads_kv",
                "heads_per_kv",
                "m_blocks",
                "n_blocks",
                "query_blocks",
                "first_head_kv",
                "items",
                "section_heads",
                "first_key_block",
                "key_blocks",
            )
        ],
        ("dq_before", P),
    ]


def panels(columns):
    return (columns + 63) // 64


def tile(rows, columns):
    return rows * panels(columns) * 128


def smem_bytes(c):
    n = block_n(c)
    return (
        tile(n, c["head_dim"])
        + tile(n, c["head_dim_v"])
        + c["q_stages"] * (tile(c["block_m"], c["head_dim"]) + (16 if splits_lse(c) else 4) * c["block_m"])
        + c["do_stages"] * (tile(c["block_m"], c["head_dim_v"]) + (16 if splits_d(c) else 4) * c["block_m"])
        + (4 if c["by_roles"] else 2) * tile(n, c["block_m"])
        + (4 * 32 * 128 if c["staged_dq"] and not c["by_roles"] else 0)
        + 128  # of the queries' warpgroup where sums are added to in order, which is not driven here
        + 8 * (2 * c["q_stages"] + 2 * c["do_stages"] + 2 * 2 + 2 * 3 + 3)
    )


def block_n(c):
    return 64 * (1 if c["by_roles"] else 2)


def splits_lse(c):
    return not (c["softcap"] or c["scale_first"]) and (not c["by_roles"] or c["block_m"] == 64)


def splits_d(c):
    return not c["by_roles"]


def rows_of(x):
    batch_stride = x.stride(0) if x.dim() == 4 else 0
    return Rows(x.data_ptr(), batch_stride, x.stride(-3), x.stride(-2))


RULE_FLAGS = ("mask_right", "mask_left", "chunked", "varlen", "softcap", "alibi", "scale_first")
UNBOUNDED = (2**31 - 1) // 4


class Variants:
    def __init__(self, folder):
        torch.zeros(1, device="cuda")
        self.folder = folder
        self.manifest = json.loads((Path(folder) / "manifest.json").read_text())
        self.kernels = {}
        self.multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count

    def kernel(self, entry, smem=0):
        if entry["cubin"] not in self.kernels:
            self.kernels[entry["cubin"]] = Kernel(self.folder, entry, smem)
        return self.kernels[entry["cubin"]]

    def names(self, head_dim):
        return list(dict.fromkeys(v["name"] for v in self.manifest["variants"] if v["config"]["head_dim"] == head_dim))

    def find(self, name, rule):
        """The variant with all of the rule's flags, and no more than masks and varlen beside them."""
        optional = {"mask_right", "mask_left", "varlen"} if "chunked" not in rule else {"varlen"}
        found = []
        for variant in self.manifest["variants"]:
            flags = {n for n in RULE_FLAGS if variant["config"][n]}
            if variant["name"] == name and rule <= flags and flags - rule <= optional:
                found.append((len(flags), variant))
        if not found:
            raise LookupError(f"{name} was not compiled for {sorted(rule)}")
        return min(found, key=lambda x: x[0])[1]


@dataclasses.dataclass
class Options:
    """What a call may ask of its scores, as the library's forward takes it."""

    causal: str | None = None  # bottom_right or top_left
    window: tuple[int, int] = (-1, -1)
    chunk: int = 0
    scale: float | None = None
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    sink: torch.Tensor | None = None
    d_sink: torch.Tensor | None = None
    d_lse: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    seqused_q: torch.Tensor | None = None
    seqused_k: torch.Tensor | None = None
    max_seqlen_q: int = 0  # packed
    max_seqlen_k: int = 0

    def rule(self):
        right = self.causal is not None or self.window[1] >= 0 or self.chunk > 0
        lengths = (self.cu_seqlens_q, self.cu_seqlens_k, self.seqused_q, self.seqused_k)
        flags = {
            "mask_right": right,
            "mask_left": self.window[0] >= 0 or self.chunk > 0,
            "chunked": self.chunk > 0,
            "varlen": any(x is not None for x in lengths),
            "softcap": self.softcap > 0,
            "alibi": self.alibi_slopes is not None,
            "scale_first": self.alibi_slopes is not None
            or (self.softcap == 0 and self.scale is not None and self.scale <= 0),
        }
        return {n for n, on in flags.items() if on}

    def visibility(self):
        left, right = (x if x >= 0 else UNBOUNDED for x in self.window)
        if self.causal is not None:
            right = 0
        return VisibilityParams(left, right, int(self.causal != "top_left"), self.chunk)

    def score(self, head_dim):
        scale = head_dim**-0.5 if self.scale is None else self.scale
        slopes = self.alibi_slopes
        return ScoreParams(
            (self.softcap or scale) * math.log2(math.e),
            2 * math.log2(math.e) * scale / self.softcap if self.softcap else 0.0,
            self.softcap or scale, pointer(slopes),
            slopes.stride(0) if slopes is not None and slopes.dim() == 2 else 0, pointer(self.sink),
        )  # fmt: skip

    def sequences(self, q, k):
        packed_q, packed_k = self.cu_seqlens_q is not None, self.cu_seqlens_k is not None
        for cu_seqlens in (self.cu_seqlens_q, self.cu_seqlens_k):
            if cu_seqlens is not None:
                batch = len(cu_seqlens) - 1
        if not (packed_q or packed_k):
            batch = q.shape[0]
        return SequenceParams(
            pointer(self.cu_seqlens_q), pointer(self.cu_seqlens_k), pointer(self.seqused_q), pointer(self.seqused_k),
            batch + int(packed_q), batch, self.max_seqlen_q if packed_q else q.shape[1],
            self.max_seqlen_k if packed_k else k.shape[1], q.shape[0] if packed_q else q.shape[0] * q.shape[1],
        )  # fmt: skip


def pointer(x):
    return None if x is None or x.numel() == 0 else x.data_ptr()


def head_strides(x):
    """Batch and head stride of [batch, heads, rows] or packed [heads, rows]."""
    return (0, 0) if x is None else (0, x.stride(0)) if x.dim() == 2 else (x.stride(0), x.stride(1))


class Backward:
    """One call. section_mb of L2 for heads in flight; by roles, ds_mb for dS and warpgroups of dQ's kernel."""

    def __init__(
        self,
        variants,
        name,
        q,
        k,
        v,
        o,
        lse,
        do,
        dq,
        dk,
        dv,
        options,
        section_mb=24,
        ds_mb=1024,
        warpgroups=2,
    ):
        entry = variants.find(name, options.rule())
        self.variants, self.entry, self.config, self.options = variants, entry, entry["config"], options
        self.launches, self.keep = [], (q, k, v, o, lse, do, dq, dk, dv)
        params = self.parameters(section_mb)
        self.bind_prepare(params)
        if self.config["by_roles"]:
            self.bind_roles(params, ds_mb << 20, warpgroups)
        else:
            self.bind_sums(params)
        if options.d_sink is not None:
            self.bind_sink(params)

    def parameters(self, section_mb):
        q, k, v, _, _, do, dq, dk, dv = self.keep
        c, options = self.config, self.options
        heads, d, heads_kv, dv_dim = *q.shape[-2:], k.shape[-2], v.shape[-1]
        sequences = options.sequences(q, k)
        packed_q, packed_k = options.cu_seqlens_q is not None, options.cu_seqlens_k is not None
        self.batch = sequences.sequences + int(packed_q or packed_k)
        m_blocks = max(1, -(-sequences.seqlen_q // c["block_m"]))
        n_blocks = max(1, -(-sequences.seqlen_k // block_n(c)))
        if packed_q:
            query_blocks = sequences.total_q // c["block_m"] + sequences.sequences
        else:
            query_blocks = sequences.sequences * m_blocks
        rows = query_blocks * c["block_m"]

        def nan(*shape):
            return torch.full(shape, math.nan, device="cuda")

        self.lse_log2, self.d_sum = nan(heads, rows), nan(heads, rows)
        self.d_split = nan(heads, rows, 4 if splits_d(c) else 0)
        self.lse_split = nan(heads, rows, 4 if splits_lse(c) else 0)
        self.dq_sum = nan(0 if c["by_roles"] else heads * rows * c["head_dim"])
        group = heads // heads_kv
        footprint = group * max(1, sequences.seqlen_q) * (2 * d + 2 * dv_dim + (0 if c["by_roles"] else 4 * d))
        return BackwardParams(
            lse_log2=self.lse_log2.data_ptr(), d_sum=self.d_sum.data_ptr(),
            lse_split=pointer(self.lse_split), d_split=pointer(self.d_split), dq_sum=self.dq_sum.data_ptr(),
            q=rows_of(q), k=rows_of(k), v=rows_of(v), d_o=rows_of(do), dq=rows_of(dq), dk=rows_of(dk), dv=rows_of(dv),
            sequences=sequences, visibility=options.visibility(), score=options.score(d),
            scale=d**-0.5 if options.scale is None else options.scale, total_k=k.shape[0] if packed_k else 0,
            head_dim=d, head_dim_v=dv_dim, heads=heads, heads_kv=heads_kv, heads_per_kv=group, m_blocks=m_blocks,
            n_blocks=n_blocks, key_blocks=n_blocks, query_blocks=query_blocks,
            items=self.batch * heads_kv * n_blocks,
            section_heads=min(self.batch * heads_kv, max(1, (section_mb << 20) // footprint)),
        )  # fmt: skip

    def bind_prepare(self, params):
        c = self.config
        _, _, _, o, lse, do, *_ = self.keep
        threads = 8 if c["head_dim_v"] <= 64 else 16 if c["head_dim_v"] <= 128 else 32
        entry = self.variants.manifest["prepare"][f"{c['element']}_{threads}_{'varlen' if c['varlen'] else 'batched'}"]
        prepared = PrepareParams(
            rows_of(o), rows_of(do), lse.data_ptr(), *head_strides(lse), pointer(self.options.d_lse),
            *head_strides(self.options.d_lse), self.lse_log2.data_ptr(), self.d_sum.data_ptr(),
            pointer(self.lse_split), pointer(self.d_split), 12.0,
            1 / params.score.scale_log2 if splits_lse(c) else 0.0, self.dq_sum.data_ptr(),
            self.dq_sum.numel() // 4, params.sequences, params.heads, params.head_dim_v, c["block_m"],
            params.m_blocks, params.query_blocks,
        )  # fmt: skip
        groups = -(-params.m_blocks * c["block_m"] // (256 // threads * 4))
        grid = groups * params.heads * params.sequences.sequences
        self.launches.append(self.variants.kernel(entry).bind((grid, 1, 1), 256, prepared))

    def bind_sink(self, params):
        options = self.options
        sums = SinkParams(
            params.lse_log2, params.d_sum, options.sink.data_ptr(), options.d_sink.data_ptr(), self.lse_log2.shape[1]
        )
        kernel = self.variants.kernel(self.variants.manifest["sink"])
        self.launches.append(kernel.bind((params.heads, 1, 1), 1024, sums))

    def bind_main(self, params):
        q, k, v, _, _, do, _, dk, dv = self.keep
        c = self.config
        bounds = (params.sequences.seqlen_q, params.sequences.seqlen_k) if c["varlen"] else (None, None)
        boxes = (
            (q, c["block_m"], bounds[0]), (k, block_n(c), bounds[1]), (v, block_n(c), bounds[1]),
            (do, c["block_m"], bounds[0]), (dk, 64, bounds[1]), (dv, 64, bounds[1]),
        )  # fmt: skip
        maps = (ctypes.c_byte * (6 * 128)).from_buffer_copy(b"".join(tensor_map(*x) for x in boxes))
        main = self.variants.kernel(self.entry["main"], smem_bytes(c))
        self.launches.append(main.bind((params.items, 1, 1), 128 * (3 if c["by_roles"] else 4), maps, params))

    def bind_sums(self, params):
        self.bind_main(params)
        finish = self.variants.kernel(self.entry["finish"])
        grid = (params.m_blocks * params.heads * params.sequences.batch, 1, 1)
        self.launches.append(finish.bind(grid, 256, params))

    def bind_roles(self, params, ds_bytes, warpgroups):
        c = self.config
        heads = self.batch * params.heads_kv
        query_tiles = params.m_blocks * (c["block_m"] // 64)
        per_head = params.heads_per_kv * query_tiles * params.n_blocks * tile(64, 64)
        chunk = min(heads, max(1, ds_bytes // per_head))
        self.ds = torch.full((chunk * per_head,), 255, dtype=torch.uint8, device="cuda")
        bounds = (params.sequences.seqlen_k, params.sequences.seqlen_q) if c["varlen"] else (None, None)
        maps = (ctypes.c_byte * 256).from_buffer_copy(
            tensor_map(self.keep[1], 64, bounds[0]) + tensor_map(self.keep[6], 64, bounds[1])
        )
        smem = 4 * (warpgroups * tile(64, 64) + tile(64, c["head_dim"])) + 64
        query = self.variants.kernel(self.entry["query"][str(warpgroups)], smem)
        for first in range(0, heads, chunk):
            part = BackwardParams.from_buffer_copy(params)
            count = min(chunk, heads - first)
            part.ds, part.first_head_kv, part.items = self.ds.data_ptr(), first, count * params.n_blocks
            part.section_heads = min(part.section_heads, count)
            self.bind_main(part)
            grid = (-(-query_tiles // warpgroups) * count * params.heads_per_kv, 1, 1)
            self.launches.append(query.bind(grid, 128 * (warpgroups + 1), maps, part))

    def run(self, only=None):
        stream = torch.cuda.current_stream().cuda_stream
        for i, launch in enumerate(self.launches):
            if only is None or i == only:
                launch(stream)
