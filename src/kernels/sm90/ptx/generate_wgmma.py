#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes wgmma.h: the WGMMA instructions that the kernels use, one function per shape.

The instruction's text must be a literal with one operand per accumulator register, so no template can spell it.
Usage: generate_wgmma.py [--check]
Writes the wgmma.h beside this script; with --check only compares it.
"""

import sys
from pathlib import Path

SCORES_N = (64, 80, 96, 112, 128)  # S = Q K^T: A and B in shared memory, both K-major
ROWS_N = (64, 128)  # S += numbers of the queries: A in registers, B in shared memory and K-major
OUTPUT_N = (32, 64, 96, 128, 192, 256)  # O += P V: A in registers, B in shared memory and MN-major
WIDE_OUTPUT_N = (128, 192, 256)  # the same with A in shared memory and K-major
QUERY_GRADIENT_N = (32, 64, 128, 192, 256)  # dQ += dS K: A and B in shared memory, both MN-major
SCORES_8_N = (96, 128)  # S = Q K^T of 8-bit operands: A and B in shared memory
OUTPUT_8_N = (64, 128)  # P V of a block: A in registers, B in shared memory
# (enumerator, C++ type, constraint and PTX type of the sums, PTX types of Q K^T and of P V, immediates)
OPERANDS_8 = (
    ("e4m3", "float", "f", "f32", "e4m3.e4m3", "e4m3.e4m3", ", 1, 1"),
    ("int8", "int", "r", "s32", "s8.s8", "u8.s8", ""),
)
ELEMENTS = (("bf16", "bf16"), ("fp16", "f16"))  # (enumerator, PTX type)

HEADER = """\
// Written by generate_wgmma.py; do not edit.
// SPDX-License-Identifier: Apache-2.0
//
// One WGMMA of M 64, with accumulators d: 64 x N, N / 2 registers per thread. 16-bit operands have K 16 and float32
// accumulators, 8-bit ones K 32 and those of e4m3 float32, of int8 int32.
#pragma once

#include <cuda/std/cstdint>

#include "kernels/math/element.h"

namespace strobe::ptx {

using cuda::std::uint32_t;
using cuda::std::uint64_t;

// wgmma_ss: d = a * b (+ d if accumulate), a and b shared-memory descriptors, both K-major.
// wgmma_ss_mn: the same, both MN-major.
// wgmma_ss_k_mn: the same, a K-major and b MN-major.
// wgmma_rs: d = a * b (+ d if accumulate), a in registers (two elements each), b a shared-memory descriptor, MN-major.
// wgmma_rs_k: the same, b K-major.
// wgmma_ss_8, wgmma_rs_8: the same with K 32 and 8-bit operands, both K-major; integers have integer sums, and the A
// operand in registers is unsigned then.
// The length of d says which N.
"""


def wrap(items, indent, width=112):
    lines, line = [], ""
    for i, item in enumerate(items):
        piece = item + (", " if i + 1 < len(items) else "")
        if len(line) + len(piece) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
    lines.append(line)
    return ("\n" + indent).join(lines)


def text(prefix, registers, suffix, predicate):
    """The instruction as C string literals, accumulators in rows of sixteen."""
    rows = [", ".join(f"%{r}" for r in range(i, min(i + 16, registers))) for i in range(0, registers, 16)]
    body = ',"\n      " '.join(rows)
    return (
        f'"{{ .reg .pred accumulate; setp.ne.b32 accumulate, %{predicate}, 0; {prefix} {{"\n'
        f'      "{body}}},"\n      " {suffix} }}\\n"'
    )


def accumulators(registers):
    return wrap([f'"+f"(d[{r}])' for r in range(registers)], "        ")


def scores(n, name_of="wgmma_ss", transposed=(0, 0), accumulate_is_known=True):
    r = n // 2
    known = ", bool accumulate" if accumulate_is_known else ""
    argument = "" if accumulate_is_known else ", int accumulate"
    value = '"n"(accumulate ? 1 : 0)' if accumulate_is_known else '"r"(accumulate)'
    out = [
        f"\ntemplate <Element element{known}>\n"
        f"__device__ __forceinline__ void {name_of}(float (&d)[{r}], uint64_t a, uint64_t b{argument}) {{\n"
    ]
    for i, (name, ptx) in enumerate(ELEMENTS):
        out.append(
            f"  {'if' if i == 0 else '} else if'} constexpr (element == Element::{name}) {{\n    asm volatile(\n      "
        )
        out.append(
            text(
                f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx}.{ptx}",
                r,
                f"%{r}, %{r + 1}, accumulate, 1, 1, {transposed[0]}, {transposed[1]};",
                r + 2,
            )
        )
        out.append(f'\n      : {accumulators(r)}\n      : "l"(a), "l"(b), {value});\n')
    out.append("  }\n}\n")
    return "".join(out)


def output(n, name_of="wgmma_rs", transposed=1):
    r = n // 2
    out = [
        "\ntemplate <Element element>\n"
        f"__device__ __forceinline__ void {name_of}(float (&d)[{r}], const uint32_t (&a)[4], uint64_t b, "
        "int accumulate) {\n"
    ]
    for i, (name, ptx) in enumerate(ELEMENTS):
        out.append(
            f"  {'if' if i == 0 else '} else if'} constexpr (element == Element::{name}) {{\n    asm volatile(\n      "
        )
        out.append(
            text(
                f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx}.{ptx}",
                r,
                f"{{%{r}, %{r + 1}, %{r + 2}, %{r + 3}}}, %{r + 4}, accumulate, 1, 1, {transposed};",
                r + 5,
            )
        )
        out.append(
            f"\n      : {accumulators(r)}\n"
            f'      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));\n'
        )
    out.append("  }\n}\n")
    return "".join(out)


def accumulators_of(constraint, registers):
    return accumulators(registers).replace("+f", f"+{constraint}")


def eight_bit(n, function, a_type, a_operand, a_values, types_of):
    """`types_of(scores, output)`: which of the PTX types; `a_operand(first)`: A's text from operand `first` on."""
    r = n // 2
    b = r + len(a_values)
    inputs = ", ".join((*a_values, '"l"(b)', '"n"(accumulate ? 1 : 0)'))
    out = []
    for name, cpp, constraint, sums, scores_types, output_types, immediates in OPERANDS_8:
        types = types_of(scores_types, output_types)
        instruction = f"wgmma.mma_async.sync.aligned.m64n{n}k32.{sums}.{types}"
        out.append(
            f"\ntemplate <Element operands, bool accumulate>\n  requires(operands == Element::{name})\n"
            f"__device__ __forceinline__ void {function}({cpp} (&d)[{r}], {a_type}, uint64_t b) {{\n"
            "  asm volatile(\n      "
            + text(instruction, r, f"{a_operand(r)}, %{b}, accumulate{immediates};", b + 1)
            + f"\n      : {accumulators_of(constraint, r)}\n      : {inputs});\n}}\n"
        )
    return "".join(out)


def scores_8(n):
    return eight_bit(n, "wgmma_ss_8", "uint64_t a", lambda r: f"%{r}", ('"l"(a)',), lambda scores, _: scores)


def output_8(n):
    registers = [f'"r"(a[{i}])' for i in range(4)]
    return eight_bit(
        n,
        "wgmma_rs_8",
        "const uint32_t (&a)[4]",
        lambda r: f"{{%{r}, %{r + 1}, %{r + 2}, %{r + 3}}}",
        registers,
        lambda _, output: output,
    )


def main():
    instructions = [
        *(scores(n) for n in SCORES_N),
        *(output(n) for n in OUTPUT_N),
        *(output(n, "wgmma_rs_k", 0) for n in ROWS_N),
        *(scores(n, "wgmma_ss_mn", (1, 1)) for n in QUERY_GRADIENT_N),
        *(scores(n, "wgmma_ss_k_mn", (0, 1), accumulate_is_known=False) for n in WIDE_OUTPUT_N),
        *(scores_8(n) for n in SCORES_8_N),
        *(output_8(n) for n in OUTPUT_8_N),
    ]
    header = HEADER + "".join(instructions) + "\n}  // namespace strobe::ptx\n"
    path = Path(__file__).with_name("wgmma.h")
    if sys.argv[1:] == ["--check"]:
        if path.read_text() != header:
            sys.exit(f"{path} differs from what {Path(__file__).name} writes; run the script and commit the result")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        path.write_text(header)


if __name__ == "__main__":
    main()
