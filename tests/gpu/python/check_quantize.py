#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quantiser on the GPU against the CPU engine's, whose bits it must have; and its speed.

Usage: check_quantize.py [--part I/N] [--speed] [--json FILE]
Needs a Hopper GPU and PyTorch; STROBE_LIBRARY and STROBE_HEADER as strobe_api.py says. --speed: bytes read and written
in a second, K once, beside those of a copy of as many bytes; and the 8-bit forward with and without the quantiser
beside the 16-bit one.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "gpu"))
import strobe_api
from timing import median_milliseconds

NAMES = ("q", "k", "v", "q_descale", "k_descale", "v_descale", "q_shift")
SHAPES = [(2, 4, 2, 200, 333), (1, 3, 1, 130, 1), (1, 2, 2, 1, 700), (1, 2, 1, 1025, 1024)]  # batch, heads, lengths
UNITS = ("tensor", "head", "block", "group", "row")
# Heads, lengths of sequences, and rows that no sequence has.
PACKED = [
    (4, 2, (200, 0, 1, 77, 128), (333, 32, 1, 0, 129), 0),
    (2, 1, (64,), (64,), 40),
    (2, 2, (33, 700, 5), (1000, 31, 160), 3),
]


def cases():
    """(dtype, head_dim, head_dim_v, shape, how the tensors lie, options)."""
    for dtype, element, shape in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), ("int8", "float8_e4m3"), SHAPES
    ):
        yield dtype, 128, 128, shape, "dense", {"element": element}
    for head_dims in ((64, 64), (256, 256), (96, 64), (192, 128), (40, 136), (8, 256), (64, 72)):
        yield torch.bfloat16, *head_dims, SHAPES[0], "dense", {"seed": 5}
    yield torch.float32, 256, 256, SHAPES[0], "dense", {}
    yield torch.float32, 64, 64, SHAPES[0], "dense", {"element": "float8_e4m3"}
    for unit in UNITS:
        units = {f"{name}_scales": unit for name in "qkv"}
        yield torch.bfloat16, 128, 128, SHAPES[0], "dense", units
        yield torch.bfloat16, 256, 256, SHAPES[3], "dense", units | {"element": "float8_e4m3"}
        yield torch.bfloat16, 64, 64, SHAPES[3], "not finite", units
    for options in ({"rotate_qk": False}, {"rotate_v": False}, {"center_k": False}):
        yield torch.bfloat16, 128, 128, SHAPES[0], "dense", options | {"seed": 2**64 - 1}
    for layout in ("heads first", "unaligned", "not finite", "constant"):
        for element in ("int8", "float8_e4m3"):
            yield torch.bfloat16, 128, 128, SHAPES[0], layout, {"element": element}


def packed_cases():
    """(dtype, head_dim, head_dim_v, shape, how the tensors lie, options, sides without their bound, batched side)."""
    for dtype, element, shape in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), ("int8", "float8_e4m3"), PACKED
    ):
        yield dtype, 128, 128, shape, "dense", {"element": element}, "", ""
    for head_dims in ((64, 64), (256, 256), (96, 64), (192, 128), (40, 136)):
        yield torch.bfloat16, *head_dims, PACKED[0], "dense", {"seed": 5}, "", ""
    for unit, shape in itertools.product(UNITS, PACKED):
        units = {f"{name}_scales": unit for name in "qkv"}
        yield torch.bfloat16, 128, 128, shape, "not finite", units, "", ""
        yield torch.bfloat16, 256, 256, shape, "dense", units | {"element": "float8_e4m3"}, "qk", ""
    for layout in ("heads first", "unaligned", "not finite", "constant"):
        yield torch.bfloat16, 128, 128, PACKED[0], layout, {}, "k", ""
    yield torch.bfloat16, 128, 128, PACKED[0], "dense", {"center_k": False}, "", ""
    for batched in "qk":
        yield torch.bfloat16, 128, 128, PACKED[0], "dense", {}, "", batched


def draw(dtype, shape, head_dim, layout):
    batch, seqlen, heads = shape
    x = 1.5 * torch.randn(batch, seqlen, heads, head_dim) + 0.3
    if layout == "constant":
        x = torch.ones_like(x)
    if layout == "not finite":
        x[-1, seqlen // 2, 0, 3] = float("nan")
        x[0, seqlen - 1, heads - 1, head_dim - 1] = float("-inf")
    return x.to(dtype)


def lay(x, layout, device):
    """x on the device; with its heads in front of its rows, or at an address that is no multiple of 16 bytes."""
    x = x.to(device)
    if layout == "heads first":
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "unaligned":
        memory = torch.empty(x.numel() + 1, dtype=x.dtype, device=device)
        return memory[1:].view(x.shape).copy_(x)
    return x


def bits(x):
    """As integers, in which every NaN is the same."""
    if x.dtype == torch.float32:
        return x.cpu().nan_to_num(nan=12345.0).view(torch.int32)
    return x.cpu().view(torch.uint8)


def check(dtype, head_dim, head_dim_v, shape, layout, options):
    batch, heads_q, heads_kv, seqlen_q, seqlen_k = shape
    tensors = [
        draw(dtype, (batch, seqlen_q, heads_q), head_dim, layout),
        draw(dtype, (batch, seqlen_k, heads_kv), head_dim, layout),
        draw(dtype, (batch, seqlen_k, heads_kv), head_dim_v, layout),
    ]
    text = f"{str(dtype)[6:]} {head_dim}/{head_dim_v} {shape} {layout} {options}"
    return same_bits(tensors, {}, layout, options, text)


def check_packed(dtype, head_dim, head_dim_v, shape, layout, options, unbounded, batched):
    heads_q, heads_kv, *seqlens, behind = shape
    lengths, rows = {}, {}
    for side, of_side in zip("qk", seqlens, strict=True):
        rows[side] = (1, sum(of_side) + behind)
        if side == batched:
            rows[side] = (len(of_side), max(of_side))
            continue
        lengths[f"cu_seqlens_{side}"] = torch.tensor([0, *itertools.accumulate(of_side)], dtype=torch.int32)
        if side not in unbounded:
            lengths[f"max_seqlen_{side}"] = max(of_side)
    tensors = [
        draw(dtype, (*rows[side], heads), columns, layout)
        for side, heads, columns in (("q", heads_q, head_dim), ("k", heads_kv, head_dim), ("k", heads_kv, head_dim_v))
    ]
    tensors = [x if side == batched else x[0] for side, x in zip("qkk", tensors, strict=True)]
    text = f"packed {str(dtype)[6:]} {head_dim}/{head_dim_v} {shape} {layout} {options} no bounds of {unbounded!r}"
    return same_bits(tensors, lengths, layout, options, f"{text}, batched {batched!r}")


def check_wrong_lengths():
    """Lengths that lead out of the tensors: nothing beside the outputs is written, and nothing faults."""
    good = True
    for ends in ([0, 500, -3, 10000, 90], [-(2**31), 2**31 - 1, 5, 5, 7], [90, 80, 70, 60, 50]):
        lengths = {f"cu_seqlens_{side}": torch.tensor(ends, dtype=torch.int32, device="cuda") for side in "qk"}
        q, k, v = (torch.randn(90, 2, 128, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        for bounds in ({}, {"max_seqlen_q": 40, "max_seqlen_k": 40}):
            call = strobe_api.Quantize(q, k, v, lengths=lengths | bounds, v_scales="block", guard=4096)
            call.run()
            torch.cuda.synchronize()
            intact = call.guards_are_intact()
            good &= intact
            print(f"lengths {ends} {bounds}: {'stay inside' if intact else 'WRONG'}", flush=True)
    return good


def same_bits(tensors, lengths, layout, options, text):
    """Whether both engines write the same; prints where they do not."""
    wanted = strobe_api.quantize(*tensors, lengths=lengths, **options)
    on_device = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in lengths.items()}
    call = strobe_api.Quantize(*(lay(x, layout, "cuda") for x in tensors), lengths=on_device, **options)
    for name in NAMES:
        if name in call.results:
            call.results[name].view(torch.uint8).fill_(0x5A)
    given = call.run()
    torch.cuda.synchronize()
    wrong = {}
    for name in NAMES:
        if name in wanted:
            apart = (bits(wanted[name]) != bits(given[name])).sum().item()
            if apart:
                wrong[name] = f"{apart} of {wanted[name].numel()}"
    if wrong:
        print(f"WRONG {text}: {wrong}", flush=True)
    return not wrong


def speed(head_dims):
    """A list of rows."""
    rows = []
    torch.manual_seed(0)
    for head_dim, seqlen in itertools.product(head_dims, (512, 1024, 2048, 4096, 8192, 16384)):
        batch, heads = max(1, 16384 // seqlen), 2048 // head_dim
        q, k, v = (torch.randn(batch, seqlen, heads, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        runs, row = {}, {"head_dim": head_dim, "seqlen": seqlen}
        calls = {}
        for element in ("int8", "float8_e4m3"):
            call = strobe_api.Quantize(q, k, v, element=element)
            call.run()
            calls[element] = call
            runs[element] = call.run
            if head_dim <= 128 and seqlen in (4096, 16384):
                o = torch.empty_like(q)
                forward = strobe_api.Forward(**call.results, o=o)
                runs[f"{element} forward"] = forward.run
                runs[f"{element} both"] = lambda call=call, forward=forward: (call.run(), forward.run())
        if head_dim <= 128 and seqlen in (4096, 16384):
            runs["bf16 forward"] = strobe_api.Forward(q, k, v, torch.empty_like(q)).run
        paper = {"q_scales": "block", "k_scales": "block", "v_scales": "block", "rotate_v": False}
        calls["int8, not centred"] = strobe_api.Quantize(q, k, v, center_k=False)
        calls["paper"] = strobe_api.Quantize(q, k, v, element="float8_e4m3", center_k=False, **paper)
        for name in ("int8, not centred", "paper"):
            runs[name] = calls[name].run
        size = calls["int8"].bytes // 2
        source, to = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        runs["copy"] = lambda to=to, source=source: to.copy_(source)
        times = median_milliseconds(runs, 3, 5)
        row["copy_gb_s"] = 2 * size / times["copy"] / 1e6
        for element, call in calls.items():
            row[f"{element}_gb_s"] = call.bytes / times[element] / 1e6
            row[f"{element}_of_copy"] = row[f"{element}_gb_s"] / row["copy_gb_s"]
        row["milliseconds"] = times
        rows.append(row)
        print(
            f"d{head_dim} {seqlen:6d}: copy {row['copy_gb_s']:.0f} GB/s, "
            f"int8 {row['int8_of_copy']:.2f}, e4m3 {row['float8_e4m3_of_copy']:.2f}, "
            f"not centred {row['int8, not centred_of_copy']:.2f}, "
            f"e4m3 as in the paper {row['paper_of_copy']:.2f} of it; "
            + ", ".join(f"{name} {1000 * t:.0f}" for name, t in times.items() if "o" in name[-7:] and name != "copy"),
            flush=True,
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="0/1", help="every n-th case, from the i-th on: i/n. Parts compile at once")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128, 256], help="of --speed")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.speed:
        rows = speed(arguments.head_dim)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1))
        return
    torch.manual_seed(1)
    first, parts = map(int, arguments.part.split("/"))
    chosen = [(check, case) for case in cases()] + [(check_packed, case) for case in packed_cases()]
    chosen = chosen[first::parts]
    good = sum(of(*case) for of, case in chosen)
    print(f"{good} of {len(chosen)} cases have the CPU engine's bits")
    inside = first != 0 or check_wrong_lengths()
    sys.exit(0 if good == len(chosen) and inside else 1)


if __name__ == "__main__":
    main()
