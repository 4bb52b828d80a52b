# SPDX-License-Identifier: Apache-2.0
"""The ways in which run.py breaks the CPU engine."""

from bfloat16_mutations import AMX, DOT_PRODUCTS
from few_queries_mutations import DECODING, ROW_INVARIANCE
from memory_mutations import MEMORY
from tree import Mutation

FORWARD = "src/cpu/kernels/forward-inl.h"
BACKWARD = "src/cpu/kernels/backward-inl.h"
BACKWARD_ROWS = "src/cpu/kernels/backward_rows-inl.h"
BIAS_GRADIENT = "src/cpu/kernels/bias_gradient-inl.h"
DROPOUT = "src/cpu/kernels/dropout-inl.h"
MULTIPLY = "src/cpu/kernels/multiply-inl.h"
SCORES = "src/cpu/kernels/scores-inl.h"
TERMS = "src/cpu/kernels/terms-inl.h"
STATISTICS = "src/cpu/kernels/row_statistics.h"
NORMALIZERS = "src/cpu/kernels/row_normalizers.h"
TASK = "src/cpu/kernels/task.h"
TURN = "src/cpu/kernels/turn.h"
SCORE_RULE = "src/call/score_rule.h"
VISIBLE_KEYS = "src/call/visible_keys.h"
CALL = "src/cpu/call.cpp"
FORWARD_CALL = "src/cpu/forward.cpp"
BACKWARD_CALL = "src/cpu/backward.cpp"
SINK_GRADIENT = "src/cpu/modifier_gradients.h"


ONLINE_SOFTMAX = [
    Mutation(
        "row sum is not rescaled",
        FORWARD,
        "hn::MulAdd(hn::Load(d, row_sum), rescale, sum)",
        "hn::Add(hn::Load(d, row_sum), sum)",
    ),
    Mutation(
        "output is not rescaled",
        MULTIPLY,
        "hn::MulAdd(hn::Load(d, p), scale[n], at[m][n])",
        "hn::Add(hn::Load(d, p), at[m][n])",
    ),
    Mutation(
        "a row without a key yet gives NaN",
        FORWARD,
        "hn::IfThenElse(hn::Eq(new_max, hn::Set(d, -kInfinity)), hn::Zero(d), new_max)",
        "new_max",
    ),
    Mutation(
        "LSE is in base 2",
        STATISTICS,
        "max + std::log(static_cast<double>(sum))",
        "max + std::log2(static_cast<double>(sum))",
    ),
    Mutation(
        "a row that sees nothing has an LSE of 0",
        STATISTICS,
        "sum == 0.0F ? -kInfinity : static_cast<float>(exact_lse())",
        "sum == 0.0F ? 0.0F : static_cast<float>(exact_lse())",
    ),
    Mutation(
        "NaN of hidden values reaches the output",
        FORWARD,
        "!all_finite(scratch_.values, value_layout_, round_up(count, kStrip), dv_)",
        "false",
    ),
    Mutation(
        "max_logits is in base 2",
        STATISTICS,
        "return static_cast<float>(max);",
        "return static_cast<float>(max * std::numbers::log2e);",
    ),
]

MASKS = [
    Mutation(
        "keys before a panel's last lane sees any are not hidden",
        SCORES,
        "std::clamp(begin[vectors * kLanes - 1] - origin, first, last)",
        "first",
    ),
    Mutation(
        "keys after a panel's first lane sees any are not hidden",
        SCORES,
        "std::clamp(shown - origin, all_from, last)",
        "last",
    ),
    Mutation(
        "causal edge: the forward hides the diagonal",
        VISIBLE_KEYS,
        "std::clamp<std::int64_t>(last + 1, 0, keys)",
        "std::clamp<std::int64_t>(last, 0, keys)",
    ),
    Mutation(
        "causal edge: the backward hides the diagonal",
        VISIBLE_KEYS,
        "std::clamp<std::int64_t>(first - diagonal, 0, positions)",
        "std::clamp<std::int64_t>(first - diagonal + 1, 0, positions)",
    ),
    Mutation(
        "causal edge: one key of the future is visible",
        VISIBLE_KEYS,
        "if (problem.causal != CausalMask::none) visible.right = 0;",
        "if (problem.causal != CausalMask::none) visible.right = 1;",
    ),
    Mutation(
        "causal is aligned to the wrong corner",
        VISIBLE_KEYS,
        "problem.causal == CausalMask::top_left",
        "problem.causal == CausalMask::bottom_right",
    ),
    Mutation(
        "window: both sides are the right one",
        VISIBLE_KEYS,
        "reach(problem.window.left)",
        "reach(problem.window.right)",
    ),
    Mutation("panel mask: one row too many is seen", SCORES, "hn::Lt(at, end)", "hn::Le(at, end)"),
    Mutation(
        "chunk edge: the next chunk's first key is visible",
        VISIBLE_KEYS,
        "std::min(center + right, chunk_begin(center) + chunk - 1)",
        "std::min(center + right, chunk_begin(center) + chunk)",
    ),
    Mutation(
        "chunks of negative centers begin too late",
        VISIBLE_KEYS,
        "rest < 0 ? rest + chunk : rest",
        "rest",
    ),
    Mutation(
        "chunks are counted from a part's first key",
        VISIBLE_KEYS,
        "(at + chunk_keys) % chunk",
        "at % chunk",
    ),
    Mutation(
        "a part's keys begin where the whole's do",
        VISIBLE_KEYS,
        "visible.diagonal = q.offset - k.offset;",
        "visible.diagonal = q.offset;",
    ),
    Mutation(
        "block mask: a row serves two rows of blocks",
        TASK,
        "position / size * row_stride",
        "position / (2 * size) * row_stride",
    ),
]

GEOMETRY = [
    Mutation(
        "every head of a group reads the first one's queries",
        TASK,
        "place.position * position_stride + place.head * head_stride",
        "place.position * position_stride",
    ),
    Mutation(
        "a product runs past its last column",
        MULTIPLY,
        "static_cast<int>(std::min<std::int64_t>(columns, kWidth))",
        "kWidth",
    ),
    Mutation(
        "a panel without keys keeps what its memory held",
        FORWARD,
        "if (row % kPanel == 0 && !scratch_.summed[lane / kPanel]) clear_output(lane);",
        "",
    ),
    Mutation(
        "query heads take key heads in turn, not in groups",
        FORWARD_CALL,
        "group * heads_per_group(problem) / heads_per_key_head(problem)",
        "group % problem.heads_kv",
    ),
    Mutation(
        "batched rows are a head apart",
        CALL,
        "tensor.strides[packed ? 0 : 1]",
        "tensor.strides[packed ? 0 : 2]",
    ),
    Mutation(
        "unused rows of O are left as they were",
        FORWARD_CALL,
        "clear_unused(problem, batch, Side::query, arguments.o);",
        "",
    ),
    Mutation(
        "unused rows of dK are left as they were",
        BACKWARD_CALL,
        "clear_unused(problem_, batch_, Side::key, arguments_.dk);",
        "",
    ),
]

SCALES = [
    Mutation(
        "the sign of the scale is lost",
        FORWARD_CALL,
        "(signed_scale < 0.0F ? -1.0F : 1.0F)",
        "1.0F",
    ),
    Mutation(
        "softcap does not divide the score",
        SCORE_RULE,
        "static_cast<float>(product / softcap)",
        "static_cast<float>(product)",
    ),
    Mutation(
        "dK lacks the scale",
        "src/cpu/kernels/key_gradients-inl.h",
        "write_keys(scratch_.dk, d_, task_.head_dim, task_.scale, task_.dk);",
        "write_keys(scratch_.dk, d_, task_.head_dim, 1.0F, task_.dk);",
    ),
    Mutation(
        "dV lacks what the products of qv add",
        "src/cpu/kernels/key_gradients-inl.h",
        "if (task_.qv_columns > 0) add_value_products();",
        "",
    ),
]

BACKWARD_PASS = [
    Mutation("dS lacks delta", BACKWARD, "hn::Sub(dp, hn::Set(d, delta[row]))", "dp"),
    Mutation(
        "dLSE is added to delta, not taken from it",
        BACKWARD_ROWS,
        "sum - task.d_lse.data[task.d_lse.offset(row)]",
        "sum + task.d_lse.data[task.d_lse.offset(row)]",
    ),
    Mutation("dQ lacks the scale", BACKWARD_ROWS, "task.scale", "1.0F"),
    Mutation(
        "heads with masks of their own share the sums of dQ",
        BACKWARD_CALL,
        "dq_block + group * blocks",
        "dq_block",
    ),
    Mutation(
        "softcap's derivative is dropped",
        BACKWARD,
        "hn::Mul(ds, hn::NegMulAdd(s, s, hn::Set(d, 1.0F)))",
        "ds",
    ),
    Mutation(
        "hidden pairs reach dV",
        BACKWARD,
        "p_kept = hn::IfThenElseZero(seen, p_kept);",
        "",
    ),
    Mutation(
        "a row that sees no key has probabilities",
        NORMALIZERS,
        "lse == -kInfinity ? kInfinity : lse",
        "lse",
    ),
    Mutation("dQ is not added in turn", TURN, "now != own", "false"),
    Mutation("dQ's turn is never passed on", TURN, "store_and_notify(turn, next);", ""),
    Mutation(
        "heads under a block mask share the first one's LSE",
        TASK,
        "normalizers = normalizers.from_row(row_blocks * block_m);",
        "",
    ),
]

MODIFIERS = [
    Mutation(
        "ALiBi's center ignores the lengths",
        FORWARD,
        "task_.visible.diagonal",
        "0",
    ),
    Mutation(
        "every head of a group has the first one's slope",
        TERMS,
        "terms.alibi_slopes[head]",
        "terms.alibi_slopes[0]",
    ),
    Mutation(
        "the bias is not in the backward",
        BACKWARD,
        "hn::MulAdd(s, scale, hn::Load(d, scratch_.terms + row * kPanel + lane))",
        "hn::Mul(s, scale)",
    ),
    Mutation(
        "d_bias has softcap's derivative",
        BACKWARD,
        "hn::IfThenElseZero(seen, unsloped)",
        "hn::IfThenElseZero(seen, ds)",
    ),
    Mutation(
        "a shared d_bias is overwritten, not summed",
        BIAS_GRADIENT,
        "hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i))",
        "hn::LoadU(d, from + i)",
    ),
    Mutation(
        "the turn at a shared d_bias is passed on before it has come",
        BIAS_GRADIENT,
        "wait_for(kAll);",
        "static_cast<void>(kAll);",
    ),
    Mutation(
        "the sink is not in the sum",
        STATISTICS,
        "sum * rescale + std::exp(score - largest)",
        "sum * rescale",
    ),
    Mutation(
        "the sink is in base 2",
        STATISTICS,
        "statistics.add_sink(task.sinks[head])",
        "statistics.add_sink(task.sinks[head] * kLog2E)",
    ),
    Mutation(
        "d_sink lacks its sign",
        SINK_GRADIENT,
        "-std::exp(below - log2_sum * std::numbers::ln2)",
        "std::exp(below - log2_sum * std::numbers::ln2)",
    ),
]

DROPOUTS = [
    Mutation(
        "dropout of a part draws for whole words of keys alone",
        DROPOUT,
        "if (skipped != 0) shift_bits",
        "if (skipped < 0) shift_bits",
    ),
    Mutation(
        "the second sixteen keys drop the first ones' bits",
        DROPOUT,
        "*place_of(of, place) |= bits << kGroup;",
        "*place_of(of, place) |= bits;",
    ),
    Mutation(
        "rows of a patch trade their bits",
        DROPOUT,
        "(2 * (&of - patches) + place % 2 + place / 2 * 8) * stride",
        "(2 * (&of - patches) + place / 2 + place % 2 * 8) * stride",
    ),
    Mutation(
        "O lacks dropout's scale",
        STATISTICS,
        "rescale / (statistics.sum * keep)",
        "rescale / statistics.sum",
    ),
    Mutation(
        "dV lacks dropout's scale",
        BACKWARD,
        "p_kept = hn::IfThenElseZero(keeps, hn::Mul(p, inverse_keep));",
        "p_kept = hn::IfThenElseZero(keeps, p);",
    ),
    Mutation(
        "dropped elements have a dP",
        BACKWARD,
        "dp = hn::IfThenElseZero(keeps, hn::Mul(dp, inverse_keep));",
        "dp = hn::Mul(dp, inverse_keep);",
    ),
    Mutation(
        "the heads of a group share a dropout mask",
        DROPOUT,
        "task.head + static_cast<unsigned>(rows.head)",
        "task.head",
    ),
    Mutation(
        "the threshold itself is dropped",
        DROPOUT,
        "(task.key.threshold - 1U) ^ 0x80U",
        "task.key.threshold ^ 0x80U",
    ),
]

MUTATIONS = [
    *ONLINE_SOFTMAX,
    *MASKS,
    *GEOMETRY,
    *SCALES,
    *BACKWARD_PASS,
    *MODIFIERS,
    *DROPOUTS,
    *DECODING,
    *ROW_INVARIANCE,
    *MEMORY,
    *AMX,
    *DOT_PRODUCTS,
]
