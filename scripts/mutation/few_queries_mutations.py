# SPDX-License-Identifier: Apache-2.0
"""Mutations of the CPU engine's path for few queries, and of row invariance; mutations.py has the others."""

from tree import Mutation

FORWARD = "src/cpu/kernels/forward-inl.h"
QUERY_BLOCK = "src/cpu/kernels/query_block-inl.h"
FEW_QUERIES = "src/cpu/kernels/few_queries-inl.h"
FEW_QUERIES_BLOCK = "src/cpu/kernels/few_queries_block-inl.h"
FEW_QUERIES_STEPS = "src/cpu/kernels/few_queries_steps-inl.h"
TERMS = "src/cpu/kernels/terms-inl.h"
FEW_QUERIES_MERGE = "src/cpu/kernels/few_queries_merge-inl.h"
FEW_QUERIES_PRODUCTS = "src/cpu/kernels/few_queries_products-inl.h"
FEW_QUERIES_CALL = "src/cpu/few_queries.h"
PLAN = "src/cpu/plan.cpp"
FEW_QUERIES_PLAN = "src/cpu/few_queries.cpp"

ROW_INVARIANCE = [
    Mutation(
        "row-invariant: few queries sum across lanes",
        FEW_QUERIES_BLOCK,
        "hn::Set(d, in_order)",
        "hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum)))",
    ),
    Mutation(
        "row-invariant: few queries keep their order of columns",
        FEW_QUERIES,
        "first_.row_invariant ? (rows_ <= kRowGroup ? 0 : rows_) : panel_rows(rows_)",
        "panel_rows(rows_)",
    ),
    Mutation(
        "row-invariant: few queries add a block to what was summed before",
        FEW_QUERIES_BLOCK,
        "first_.row_invariant ? scratch_.block_output + head * rows_ * scratch_.columns_v : state(head).output",
        "state(head).output",
    ),
    Mutation(
        "row-invariant: tiles of other keys than few queries have",
        PLAN,
        "tiles.block_n = kFewQueriesKeys",
        "tiles.block_n = 2 * kFewQueriesKeys",
    ),
    Mutation(
        "row-invariant: a sum that underflowed keeps its sign", FORWARD, "output[c] += 0.0F", "output[c] += -0.0F"
    ),
    Mutation(
        "row-invariant: tiles begin at the first visible key",
        QUERY_BLOCK,
        "round_down(task_.visible.begin(first_position()), task_.tiles.block_n)",
        "task_.visible.begin(first_position())",
    ),
]

DECODING = [
    Mutation(
        "few queries: the output is not rescaled",
        FEW_QUERIES_BLOCK,
        "hn::Mul(hn::LoadU(d, output + c), hn::Set(d, factor))",
        "hn::LoadU(d, output + c)",
    ),
    Mutation(
        "few queries: the row sum is not rescaled", FEW_QUERIES_BLOCK, "row_sum * scratch_.rescale[row]", "row_sum"
    ),
    Mutation(
        "few queries: a row without a key yet gives NaN",
        FEW_QUERIES_MERGE,
        "hn::IfThenElse(hn::Eq(row_max, hn::Set(d, -kInfinity)), hn::Zero(d), row_max)",
        "row_max",
    ),
    Mutation(
        "few queries: chunks are merged without their weights",
        FEW_QUERIES_MERGE,
        "exp2(hn::Mul(below, hn::Set(d, task.exponent_factor())))",
        "hn::Set(d, 1.0F)",
    ),
    Mutation("few queries: hidden keys are not masked", FEW_QUERIES_BLOCK, "at < first || at + kLanes > last", "false"),
    Mutation(
        "few queries: hidden blocks are computed",
        FEW_QUERIES_BLOCK,
        "shown ? std::clamp<std::int64_t>(scratch_.visible_end[row] - key, 0, count) : 0",
        "std::clamp<std::int64_t>(scratch_.visible_end[row] - key, 0, count)",
    ),
    Mutation(
        "few queries: rows of a group share the keys of the last",
        FEW_QUERIES,
        "*std::min_element(end, end + kRows)",
        "end[kRows - 1]",
    ),
    Mutation(
        "few queries, in place: keys hidden at the end are seen",
        FEW_QUERIES_BLOCK,
        "return end == count;",
        "return end > 0;",
    ),
    Mutation(
        "few queries, in place: keys hidden at the start are seen",
        FEW_QUERIES_BLOCK,
        "return begin == 0;",
        "return begin < kFewQueriesKeys;",
    ),
    Mutation(
        "few queries, in place: a tree's drafts are seen",
        FEW_QUERIES_BLOCK,
        "!first_.tree.reaches(key + count)",
        "true",
    ),
    Mutation(
        "few queries, in place: every step has the rows of the first",
        FEW_QUERIES_STEPS,
        "rows.offset(first)",
        "rows.offset(key)",
    ),
    Mutation(
        "few queries, in place: a step of two pages is read as of one",
        FEW_QUERIES_STEPS,
        "!rows.pages.holds_together(first, kStep)",
        "false",
    ),
    Mutation(
        "few queries, in place: keys that are no whole step are left out",
        FEW_QUERIES_STEPS,
        "if (count % kStep != 0) return std::nullopt;",
        "",
    ),
    Mutation(
        "few queries, in place: columns that are no whole vector are left out",
        FEW_QUERIES_STEPS,
        "if (task.head_dim % kLanes != 0 || task.head_dim_v % kLanes != 0) return false;",
        "",
    ),
    Mutation(
        "few queries, in place: rows share the probabilities of the first",
        FEW_QUERIES_STEPS,
        "head.factors + row * kFewQueriesKeys + first",
        "head.factors + first",
    ),
    Mutation("few queries: keys before the group's are left out", FEW_QUERIES, "all_begin > 0", "false"),
    Mutation("few queries: keys after the group's are left out", FEW_QUERIES, "all_end < last - first", "false"),
    Mutation("few queries: dropped keys are kept", FEW_QUERIES_BLOCK, "hn::IfThenElseZero(kept.at(row, at), p)", "p"),
    Mutation(
        "few queries: ALiBi has the distances of the first row",
        TERMS,
        "hn::Set(d, panel.center(0))",
        "hn::Set(d, panel.center(-panel.row))",
    ),
    Mutation(
        "few queries: the sign of the scale is lost",
        FEW_QUERIES,
        "task.query_factor",
        "1.0F",
    ),
    Mutation(
        "few queries: the last keys of a quad are the first's",
        FEW_QUERIES_PRODUCTS,
        "keys[std::min(key + i, count - 1)]",
        "keys[key]",
    ),
    Mutation(
        "few queries: every sequence has one chunk",
        FEW_QUERIES_PLAN,
        "return {begin / kFewQueriesChunk, ceil_div(end, kFewQueriesChunk)};",
        "return {0, 1};",
    ),
    Mutation(
        "few queries: the first chunk to be done merges",
        FEW_QUERIES_CALL,
        "left.fetch_sub(1, std::memory_order_acq_rel) > 1",
        "left.fetch_sub(1, std::memory_order_acq_rel) < range.count()",
    ),
]
