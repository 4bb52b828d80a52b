# SPDX-License-Identifier: Apache-2.0
"""The backward's kernels, driven without the library: for checks and measurements of variants that no plan chooses yet.

Takes the folder that pack_backward.py filled.
"""

import ctypes
import json
import math
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


class Rows(ctypes.Structure):
    _fields_ = [("data", P), ("batch_stride", I64), ("row_stride", I64), ("head_stride", I64)]


class PrepareParams(ctypes.Structure):
    _fields_ = [
        ("o", Rows),
        ("d_o", Rows),
        ("lse", P),
        ("lse_batch_stride", I64),
        ("lse_head_stride", I64),
        ("d_lse", P),
        ("lse_log2", P),
        ("d_sum", P),
        ("zeros", P),
        ("zeros_16_bytes", I64),
        ("heads", I32),
        ("seqlen", I32),
        ("rows", I32),
        ("head_dim_v", I32),
    ]


class BackwardParams(ctypes.Structure):
    _fields_ = [
        ("lse_log2", P),
        ("d_sum", P),
        ("dq_sum", P),
        ("ds", P),
        ("dk", Rows),
        ("dv", Rows),
        *[
            (n, I32)
            for n in (
                "batch",
                "heads",
                "heads_kv",
                "head_dim",
                "head_dim_v",
                "heads_per_kv",
                "seqlen_q",
                "seqlen_k",
                "m_blocks",
                "n_blocks",
                "first_head_kv",
                "items",
                "section_heads",
                "mask_left",
                "mask_right",
                "diagonal",
            )
        ],
        ("scale_log2", F32),
        ("scale", F32),
    ]


class FinishParams(ctypes.Structure):
    _fields_ = [
        ("dq_sum", P),
        ("dq", Rows),
        ("heads", I32),
        ("seqlen", I32),
        ("m_blocks", I32),
        ("head_dim", I32),
        ("scale", F32),
    ]


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


def panels(columns):
    return (columns + 63) // 64


def tile(rows, columns):
    return rows * panels(columns) * 128


def smem_bytes(c):
    n = block_n(c)
    return (
        c["kv_stages"] * (tile(n, c["head_dim"]) + tile(n, c["head_dim_v"]))
        + c["q_stages"] * (tile(c["block_m"], c["head_dim"]) + 4 * c["block_m"])
        + c["do_stages"] * (tile(c["block_m"], c["head_dim_v"]) + 4 * c["block_m"])
        + (4 if c["by_roles"] else 2) * tile(n, c["block_m"])
        + (4 * c["block_m"] * c["head_dim"] if c["staged_dq"] and not c["by_roles"] else 0)
        + 8 * (2 * c["q_stages"] + 2 * c["do_stages"] + 4 + 3 * c["kv_stages"])
    )


def block_n(c):
    return 64 * (1 if c["by_roles"] else c["consumer_warpgroups"])


def rows_of(x):
    return Rows(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


def tensor_map(x, box_rows):
    """{column, row, head, batch}; boxes of 64 columns."""
    b, s, h, d = x.shape
    extents = (U64 * 4)(d, s, h, b)
    strides = (U64 * 3)(*(2 * x.stride(i) for i in (1, 2, 0)))
    box = (U32 * 4)(64, box_rows, 1, 1)
    ones = (U32 * 4)(1, 1, 1, 1)
    raw = (ctypes.c_byte * 192)()
    base = (ctypes.addressof(raw) + 63) // 64 * 64
    dtype = 9 if x.dtype == torch.bfloat16 else 6
    check(
        driver.cuTensorMapEncodeTiled(P(base), dtype, 4, P(x.data_ptr()), extents, strides, box, ones, 0, 3, 3, 0),
        "map",
    )
    return ctypes.string_at(base, 128)


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

    def find(self, name, causal):
        return next(v for v in self.manifest["variants"] if v["name"] == name and v["config"]["mask_right"] == causal)


class Backward:
    """One call. Options: section_mb of L2 for heads in flight; by roles, ds_mb for dS and warpgroups of dQ's kernel."""

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
        causal,
        scale=None,
        section_mb=24,
        ds_mb=1024,
        warpgroups=2,
    ):
        entry = variants.find(name, causal)
        self.variants, self.entry, self.config = variants, entry, entry["config"]
        c = self.config
        b, sq, h, d = q.shape
        sk, hk, dv_dim = k.shape[1], k.shape[2], v.shape[3]
        scale = scale or d**-0.5
        block_m = c["block_m"]
        m_blocks, n_blocks = -(-sq // block_m), -(-sk // block_n(c))
        rows = m_blocks * block_m

        def nan(*shape):
            return torch.full(shape, math.nan, device="cuda")

        self.lse_log2, self.d_sum = nan(b, h, rows), nan(b, h, rows)
        self.dq_sum = nan(0 if c["by_roles"] else b * h * rows * c["head_dim"])
        threads = {64: 8, 128: 16, 256: 32}[c["head_dim_v"]]
        prepare = variants.kernel(variants.manifest["prepare"][f"{c['element']}_{threads}"])
        self.launches, self.keep = [], (q, k, v, o, lse, do, dq, dk, dv)
        prepared = PrepareParams(
            rows_of(o), rows_of(do), lse.data_ptr(), lse.stride(0), lse.stride(1), None,
            self.lse_log2.data_ptr(), self.d_sum.data_ptr(), self.dq_sum.data_ptr(), self.dq_sum.numel() // 4,
            h, sq, rows, dv_dim,
        )  # fmt: skip
        self.launches.append(prepare.bind((-(-rows // (256 // threads * 4)), h, b), 256, prepared))
        group = h // hk
        footprint = group * sq * (2 * d + 2 * dv_dim + (0 if c["by_roles"] else 4 * d))
        params = BackwardParams(
            lse_log2=self.lse_log2.data_ptr(), d_sum=self.d_sum.data_ptr(), dq_sum=self.dq_sum.data_ptr(),
            dk=rows_of(dk), dv=rows_of(dv), batch=b, heads=h, heads_kv=hk, head_dim=d, head_dim_v=dv_dim,
            heads_per_kv=group, seqlen_q=sq, seqlen_k=sk, m_blocks=m_blocks, n_blocks=n_blocks, items=b * hk * n_blocks,
            section_heads=min(b * hk, max(1, (section_mb << 20) // footprint)), diagonal=sk - sq if causal else 0,
            scale_log2=scale * math.log2(math.e), scale=scale,
        )  # fmt: skip
        if c["by_roles"]:
            self.bind_roles(params, ds_mb << 20, warpgroups)
        else:
            self.bind_sums(params)

    def bind_main(self, params):
        q, k, v, _, _, do, _, dk, dv = self.keep
        c = self.config
        boxes = ((q, c["block_m"]), (k, block_n(c)), (v, block_n(c)), (do, c["block_m"]), (dk, 64), (dv, 64))
        maps = (ctypes.c_byte * (6 * 128)).from_buffer_copy(b"".join(tensor_map(x, rows) for x, rows in boxes))
        main = self.variants.kernel(self.entry["main"], smem_bytes(c))
        grid = min(params.items, self.variants.multiprocessors) if c["persistent"] else params.items
        self.launches.append(main.bind((grid, 1, 1), 128 * (c["consumer_warpgroups"] + 1), maps, params))

    def bind_sums(self, params):
        self.bind_main(params)
        dq = self.keep[6]
        finish = FinishParams(
            params.dq_sum, rows_of(dq), params.heads, params.seqlen_q, params.m_blocks, params.head_dim, params.scale
        )
        grid = (params.m_blocks, params.heads, params.batch)
        self.launches.append(
            self.variants.kernel(self.entry["finish"]).bind(grid, 128 * self.config["consumer_warpgroups"], finish)
        )

    def bind_roles(self, params, ds_bytes, warpgroups):
        c = self.config
        heads = params.batch * params.heads_kv
        tiles_per_block = c["block_m"] // 64
        per_head = params.heads_per_kv * params.m_blocks * tiles_per_block * params.n_blocks * tile(64, 64)
        chunk = min(heads, max(1, ds_bytes // per_head))
        self.ds = torch.full((chunk * per_head,), 255, dtype=torch.uint8, device="cuda")
        maps = (ctypes.c_byte * 256).from_buffer_copy(tensor_map(self.keep[1], 64) + tensor_map(self.keep[6], 64))
        smem = 4 * (warpgroups * tile(64, 64) + tile(64, c["head_dim"])) + 64
        query = self.variants.kernel(self.entry["query"][str(warpgroups)], smem)
        for first in range(0, heads, chunk):
            part = BackwardParams.from_buffer_copy(params)
            count = min(chunk, heads - first)
            part.ds, part.first_head_kv, part.items = self.ds.data_ptr(), first, count * params.n_blocks
            part.section_heads = min(part.section_heads, count)
            self.bind_main(part)
            part = BackwardParams.from_buffer_copy(part)
            part.m_blocks *= tiles_per_block
            grid = (-(-part.m_blocks // warpgroups), count * params.heads_per_kv, 1)
            self.launches.append(query.bind(grid, 128 * (warpgroups + 1), maps, part))

    def run(self, only=None):
        stream = torch.cuda.current_stream().cuda_stream
        for i, launch in enumerate(self.launches):
            if only is None or i == only:
                launch(stream)
