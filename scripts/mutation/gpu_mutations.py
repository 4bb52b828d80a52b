# SPDX-License-Identifier: Apache-2.0
"""The ways in which run_gpu.py breaks the Hopper engine's kernels, and which test must notice each."""

from dataclasses import dataclass

from tree import Mutation

KERNELS = "src/kernels"
SCORE = f"{KERNELS}/score"
STEPS = f"{KERNELS}/steps"
FORWARD = f"{KERNELS}/hopper/forward"
BACKWARD = f"{KERNELS}/hopper/backward"


@dataclass(frozen=True)
class KernelMutation(Mutation):
    test: str  # a filter for hopper_tests; without HopperOptions. where it is one of those


BOTH_PASSES = [
    KernelMutation(
        "the causal mask is off by one",
        f"{SCORE}/visible_keys.h",
        "center + params.window_right",
        "center + params.window_right + 1",
        "Causal128",
    ),
    KernelMutation(
        "a window begins one key late",
        f"{SCORE}/visible_keys.h",
        "center - params.window_left",
        "center - params.window_left + 1",
        "Window64",
    ),
    KernelMutation(
        "a chunk ends one key late",
        f"{SCORE}/visible_keys.h",
        "begin + params.chunk - 1",
        "begin + params.chunk",
        "Chunk128",
    ),
    KernelMutation(
        "the diagonal ends in the corner of what a sequence owns",
        f"{SCORE}/visible_keys.h",
        "sequence.k.used - sequence.q.used",
        "sequence.k.owned - sequence.q.owned",
        "Packed",
    ),
    KernelMutation(
        "the softcap is too steep",
        f"{SCORE}/transform.h",
        "score * params.softcap_exponent",
        "score * 1.05F * params.softcap_exponent",
        "Softcap64",
    ),
]

SOFTMAX = [
    KernelMutation(
        "blocks that a mask crosses count as visible",
        f"{SCORE}/mask.h",
        "(first_row.last + 1) / block_n",
        "(first_row.last + block_n) / block_n",
        "Causal128",
    ),
    KernelMutation(
        "the row sum is not rescaled", f"{SCORE}/online_softmax.h", "sum[r] *= correction[r];", "", "SharpScores128"
    ),
    KernelMutation(
        "the output is not rescaled",
        f"{FORWARD}/output.h",
        "o[i] *= factor[i / 2 % kRowsPerThread];",
        "",
        "SharpScores128",
    ),
    KernelMutation("LSE is in base 2", f"{SCORE}/online_softmax.h", "lse_log2(r) * kLn2", "lse_log2(r)", "Full64"),
    KernelMutation(
        "the sink is dropped",
        f"{SCORE}/online_softmax.h",
        "sum[r] * shrunk + ptx::ex2_approx(logit_log2 - raised)",
        "sum[r] * shrunk",
        "SinkAndLargestScores64",
    ),
    KernelMutation(
        "ALiBi measures from the next key",
        f"{SCORE}/transform.h",
        "fabsf(distance), score",
        "fabsf(distance + 1.0F), score",
        "Alibi128",
    ),
    KernelMutation(
        "a negative scale is left out", f"{SCORE}/transform.h", "score *= params_.scale_log2;", "", "NegativeScale64"
    ),
    KernelMutation(
        "the largest score is the last one",
        f"{SCORE}/online_softmax.h",
        "top[r] = fmaxf(top[r], highest[r]);",
        "top[r] = highest[r];",
        "SinkAndLargestScores64",
    ),
]

FORWARD_PIPELINE = [
    KernelMutation(
        "nobody waits for K",
        f"{FORWARD}/rings.h",
        "wait<C>(barriers_.k_full[k_at_.stage], k_at_.parity);",
        "",
        "Causal128",
    ),
    KernelMutation(
        "K and V are loaded at the wrong parity",
        f"{FORWARD}/feeder.h",
        "} else {\n      wait<C>(empty_[at_.stage], at_.parity);",
        "} else {\n      wait<C>(empty_[at_.stage], at_.parity ^ 1);",
        "Full64",
    ),
    KernelMutation(
        "all query heads read the first key head",
        f"{FORWARD}/feeder.h",
        "params_.by_heads_per_kv.quotient(work_.tile.head)",
        "0",
        "Full64",
    ),
    KernelMutation(
        "the last block of keys is left out",
        f"{FORWARD}/tile_work.h",
        "work.n_end = blocks.end;",
        "work.n_end = max(blocks.end - 1, blocks.begin);",
        "Full64",
    ),
    KernelMutation(
        "stages of K are never released",
        f"{FORWARD}/rings.h",
        "arrive_once(barriers_.k_empty[k_at_.stage]);",
        "",
        "Causal128",
    ),
    KernelMutation(
        "rows that see no key are divided by their sum",
        f"{FORWARD}/epilogue.h",
        "exists && softmax.sum[r] != 0.0F",
        "exists",
        "Causal128",
    ),
    KernelMutation(
        "LSE of rows that see no key is 0",
        f"{FORWARD}/epilogue.h",
        "exists ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) / kLog2E : kMinusInfinity",
        "0.0F",
        "Causal128",
    ),
]

PREPARATION = [
    KernelMutation(
        "the gradient of LSE is forgotten", f"{STEPS}/prepare_backward.h", "sum -= rows.d_lse[row];", "", "Full64"
    ),
    KernelMutation(
        "the backward takes LSE for one in base 2",
        f"{STEPS}/prepare_backward.h",
        "lse * kLog2E",
        "lse",
        "Causal128",
    ),
    KernelMutation(
        "D sums a half of each row",
        f"{STEPS}/prepare_backward.h",
        "C.threads_per_row / 2",
        "C.threads_per_row / 4",
        "Full64",
    ),
    KernelMutation(
        "a quarter of the rows is missing in the sink's gradient",
        f"{STEPS}/sink_gradient.h",
        "sum = __fmaf_rn(ptx::ex2_approx(sink_log2 - lse.w), -d.w, sum);",
        "",
        "SinkAndLargestScores64",
    ),
]

BACKWARD_TILES = [
    KernelMutation(
        "the first query that sees a key is hidden from it",
        f"{SCORE}/visible_keys.h",
        "queries.first = max(first - diagonal, 0);",
        "queries.first = max(first - diagonal, 0) + 1;",
        "Causal128",
    ),
    KernelMutation(
        "the last query of a window is hidden from its key",
        f"{SCORE}/visible_keys.h",
        "queries.last = last - diagonal;",
        "queries.last = last - diagonal - 1;",
        "Window64",
    ),
    KernelMutation(
        "the first block of queries under a causal mask is left out",
        f"{BACKWARD}/work.h",
        "see_first.first / C.block_m",
        "see_first.first / C.block_m + 1",
        "Causal128",
    ),
    KernelMutation(
        "a block that the mask crosses counts as visible to all",
        f"{BACKWARD}/work.h",
        "(see_last.first + C.block_m - 1) / C.block_m",
        "see_last.first / C.block_m",
        "Causal128",
    ),
    KernelMutation(
        "the last queries, fewer than a block, are left out",
        f"{BACKWARD}/work.h",
        "(work.q.used + C.block_m - 1) / C.block_m",
        "work.q.used / C.block_m",
        "Full64",
    ),
    KernelMutation(
        "the query on the diagonal is hidden",
        f"{BACKWARD}/scores.h",
        "8 * j + c < first",
        "8 * j + c <= first",
        "Causal128",
    ),
    KernelMutation(
        "all queries of a group are those of its first head",
        f"{BACKWARD}/producer.h",
        "work.head_kv * params_.heads_per_kv + group;\n      for",
        "work.head_kv * params_.heads_per_kv;\n      for",
        "Full64",
    ),
    KernelMutation(
        "LSE and D are those of the first block",
        f"{BACKWARD}/producer.h",
        "first_block_of<C.rule>(params_, work.sequence, head, C.block_m) + m",
        "first_block_of<C.rule>(params_, work.sequence, head, C.block_m) + work.m_begin",
        "Full64",
    ),
    KernelMutation(
        "ALiBi of the backward measures from the next key",
        f"{BACKWARD}/scores.h",
        "fabsf(first)",
        "fabsf(first + 1.0F)",
        "Alibi128",
    ),
    KernelMutation(
        "the softcap has no slope",
        f"{BACKWARD}/scores.h",
        "fmaxf(__fmaf_rn(-tanh, tanh, 1.0F), 0.0F)",
        "1.0F",
        "Softcap64",
    ),
]

JOINT = [
    KernelMutation(
        "dS is 2^12 too large in float16",
        f"{BACKWARD}/halves.h",
        "x = {x.x * kProbabilityScale, x.y * kProbabilityScale};",
        "",
        "Full64",
    ),
    KernelMutation(
        "nobody waits for dS",
        f"{BACKWARD}/query_warpgroup.h",
        "wait<C>(barriers_.handed_full[ds.stage], ds.parity);",
        "",
        "Causal128",
    ),
    KernelMutation(
        "dS is handed over at the wrong parity",
        f"{BACKWARD}/key_warpgroup.h",
        "wait<C>(barriers_.handed_empty[ds_.stage], ds_.parity ^ 1);",
        "wait<C>(barriers_.handed_empty[ds_.stage], ds_.parity);",
        "Full64",
    ),
    KernelMutation(
        "dK and dV begin anew in each step", f"{BACKWARD}/key_warpgroup.h", "started = true;", "", "Causal128"
    ),
    KernelMutation(
        "stages of dO are not released, those of Q twice",
        f"{BACKWARD}/key_warpgroup.h",
        "arrive<C>(barriers_.do_empty[do_.stage]);",
        "arrive<C>(barriers_.q_empty[q_.stage]);",
        "Full64",
    ),
    KernelMutation(
        "dK is not scaled",
        f"{BACKWARD}/epilogue.h",
        "params.scale * score_gradient_factor(C)",
        "score_gradient_factor(C)",
        "Causal128",
    ),
]

BY_ROLES = [
    KernelMutation(
        "dV of keys that no query sees is left as it was",
        f"{BACKWARD}/epilogue.h",
        "clear_rows(params.dv, params.head_dim_v, batch, work.head_kv, begin, end, thread, kWarpgroupSize);",
        "",
        "DeterministicTopLeft128",
    ),
    KernelMutation(
        "NaN of hidden keys reaches dQ",
        f"{BACKWARD}/exact_rows.h",
        "finite && (row[column] & kExponent) != kExponent",
        "finite",
        "DeterministicTopLeft128",
    ),
    KernelMutation(
        "D is 2^12 too large",
        f"{BACKWARD}/roles.h",
        "scale_sums<C>(d_sum, kProbabilityScale *",
        "scale_sums<C>(d_sum,",
        "DeterministicTopLeft128",
    ),
    KernelMutation(
        "P is handed over at the wrong parity",
        f"{BACKWARD}/roles.h",
        "wait<C>(barriers_.handed_empty[p_.stage], p_.parity ^ 1);",
        "wait<C>(barriers_.handed_empty[p_.stage], p_.parity);",
        "Causal256",
    ),
    KernelMutation(
        "nobody waits for P",
        f"{BACKWARD}/roles.h",
        "wait<C>(barriers_.handed_full[p_.stage], p_.parity);",
        "",
        "DeterministicTopLeft128",
    ),
    KernelMutation(
        "dQ lacks its last tile of keys",
        f"{BACKWARD}/query_kernel.h",
        "min(seen.end, params.first_key_block + params.key_blocks)",
        "min(seen.end - 1, params.first_key_block + params.key_blocks)",
        "Causal256",
    ),
    KernelMutation(
        "dQ is made of the first key head",
        f"{BACKWARD}/query_kernel.h",
        "tile.head / params.heads_per_kv",
        "0",
        "Causal256",
    ),
]

# Kernels that start while the one before them ends, and do not wait for what it writes.
DEPENDENT_LAUNCHES = [
    KernelMutation(
        "LSE and D are read before they are written",
        f"{BACKWARD}/producer.h",
        "ptx::griddepcontrol_wait();",
        "",
        "HopperDependentLaunches.Of64",
    ),
    KernelMutation(
        "the sums of dQ are read before they are complete",
        f"{BACKWARD}/finish.h",
        "ptx::griddepcontrol_wait();",
        "",
        "HopperDependentLaunches.Of64",
    ),
    KernelMutation(
        "dS is read before it is written",
        f"{BACKWARD}/query_kernel.h",
        "ptx::griddepcontrol_wait();\n  const auto tile",
        "const auto tile",
        "HopperDependentLaunches.Of256",
    ),
]

MUTATIONS = [
    *BOTH_PASSES,
    *SOFTMAX,
    *FORWARD_PIPELINE,
    *PREPARATION,
    *BACKWARD_TILES,
    *JOINT,
    *BY_ROLES,
    *DEPENDENT_LAUNCHES,
]
