# SPDX-License-Identifier: Apache-2.0
"""Mutations of the CPU engine's bfloat16 kernels; mutations.py has the others."""

from tree import Mutation

AMX_FORWARD = "src/cpu/bfloat16/forward-inl.h"
AMX_SOFTMAX = "src/cpu/bfloat16/softmax-inl.h"
AMX_BACKWARD = "src/cpu/bfloat16/backward-inl.h"
AMX_DIFFERENTIATE = "src/cpu/bfloat16/differentiate-inl.h"
AMX_KEPT_PAIRS = "src/cpu/bfloat16/kept_pairs-inl.h"
DOT_UNIT = "src/cpu/bfloat16/dot_unit-inl.h"
BFLOAT16_UNIT = "src/cpu/bfloat16/unit.cpp"

AMX = [
    Mutation(
        "AMX: row sum is not rescaled",
        AMX_SOFTMAX,
        "hn::MulAdd(hn::Load(d, row_sum), rescale, hn::Load(d, sum_ + v * kLanes))",
        "hn::Add(hn::Load(d, row_sum), hn::Load(d, sum_ + v * kLanes))",
    ),
    Mutation("AMX: output is not rescaled", AMX_FORWARD, "hn::Mul(hn::Load(d, at), factor)", "hn::Load(d, at)"),
    Mutation("AMX: panels in flight share a buffer", AMX_FORWARD, "next.half = 1 - scored.half;", "next.half = 0;"),
    Mutation(
        "AMX: panels at the mask's edge are not masked",
        AMX_FORWARD,
        "begin[bf16::kBlock - 1] - key_begin_ > panel.first || end[0] - key_begin_ < panel.last",
        "false",
    ),
    Mutation("AMX: hidden blocks are computed", AMX_FORWARD, "if (!sees(row, key_begin_)) return {};", ""),
    Mutation(
        "AMX: a key is dropped with the one after it",
        AMX_KEPT_PAIRS,
        "kept(hn::Load(Words(), words_ + v * kLanes), key)",
        "kept(hn::Load(Words(), words_ + v * kLanes), key | 1)",
    ),
    Mutation("AMX: hidden pairs reach dV", AMX_DIFFERENTIATE, "p = hn::IfThenElseZero(seen, p);", ""),
    Mutation("AMX: ALiBi is not in the backward", AMX_DIFFERENTIATE, "score = with_terms(s, key, v);", ""),
    Mutation(
        "AMX: NaN of any bits is rounded to a number",
        AMX_DIFFERENTIATE,
        "hn::IfThenElse(hn::IsNaN(x), hn::Set(Floats(), std::numeric_limits<float>::quiet_NaN()), x)",
        "x",
    ),
    Mutation("AMX: d_bias has keys for queries", AMX_BACKWARD, "Unit::transpose(keys);", ""),
    Mutation(
        "AMX: dK lacks the scale", AMX_BACKWARD, "scratch_.dk[key * d_ + c] * task_.scale", "scratch_.dk[key * d_ + c]"
    ),
]

# Begin with words that run.py knows: these are for AVX512-BF16's tests.
DOT_PRODUCTS = [
    Mutation("dot products: the processor is taken to have none", BFLOAT16_UNIT, "bit(cpuid(7, 1).eax, 5)", "false"),
    Mutation(
        "dot products: sums begin at 0 in the left half",
        DOT_UNIT,
        "kAdd ? _mm512_load_ps(sums + r * stride) : _mm512_setzero_ps()",
        "_mm512_setzero_ps()",
    ),
    Mutation(
        "dot products: sums begin at what lies there",
        DOT_UNIT,
        "kAdd ? _mm512_load_ps(sums + r * stride + bf16::kTileRows) : _mm512_setzero_ps()",
        "_mm512_load_ps(sums + r * stride + bf16::kTileRows)",
    ),
    Mutation(
        "dot products: both groups of columns read the first",
        DOT_UNIT,
        "right.data + right.group_stride",
        "right.data",
    ),
    Mutation(
        "dot products: both groups of rows read the first",
        DOT_UNIT,
        "row / bf16::kTileRows * left.group_stride",
        "0",
    ),
    Mutation(
        "dot products: all passes over a group read its first rows",
        DOT_UNIT,
        "row % bf16::kTileRows * bf16::kTileDepth",
        "0",
    ),
    Mutation("dot products: the left operand repeats its tile's rows", DOT_UNIT, "a += kSkipped", "a += 0"),
    Mutation("dot products: the last pair of a tile is left out", DOT_UNIT, "pair < bf16::kTileRows", "pair < 15"),
    Mutation("dot products: scores are weights without a softmax", AMX_FORWARD, "stage({}, next, {});", ""),
    Mutation("dot products: a panel is not weighted", AMX_FORWARD, "stage({}, {}, next);", ""),
]
