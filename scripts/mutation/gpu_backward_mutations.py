# SPDX-License-Identifier: Apache-2.0
"""The ways in which run_gpu.py breaks the sm90 backward kernels, and which test must notice each."""

from gpu_mutations import AUXILIARY, BACKWARD, SCORE, SEQUENCE, KernelMutation

PREPARATION = [
    KernelMutation(
        "the gradient of LSE is forgotten", f"{AUXILIARY}/prepare_backward.h", "sum -= rows.d_lse[row];", "", "Full64"
    ),
    KernelMutation(
        "the backward takes LSE for one in base 2",
        f"{AUXILIARY}/prepare_backward.h",
        "lse * kLog2E",
        "lse",
        "Causal128",
    ),
    KernelMutation(
        "D sums a half of each row",
        f"{AUXILIARY}/prepare_backward.h",
        "C.threads_per_row / 2",
        "C.threads_per_row / 4",
        "Full64",
    ),
    KernelMutation(
        "a quarter of the rows is missing in the sink's gradient",
        f"{AUXILIARY}/sink_gradient.h",
        "add(lse.w, highest.w, d.w);",
        "",
        "SinkAndLargestScores64",
    ),
    KernelMutation(
        "no row has a large LSE",
        f"{AUXILIARY}/prepared_rows.h",
        "return fabsf(lse) > kLargeLse &&",
        "return fabsf(lse) < kLargeLse &&",
        "GpuLargeScoresWith.RowsMaskedByAFiniteBiasTakeTheMean/sm90_bfloat16_d64",
    ),
    KernelMutation(
        "the sink is no part of a large row's sum",
        f"{AUXILIARY}/large_rows.h",
        "if (of.rule.sink) {",
        "if (false) {",
        "GpuLargeScores.ASinkOfTheSameSizeIsOneMoreKey/sm90",
    ),
    KernelMutation(
        "the sum of a large row is that of its first warp's keys",
        f"{AUXILIARY}/large_rows.h",
        "for (const auto& warp : of_warps) {",
        "for (const auto& warp : {of_warps[0]}) {",
        "GpuLargeScoresWith.RowsMaskedByAFiniteBiasTakeTheMean/sm90_bfloat16_d64",
    ),
]

BACKWARD_TILES = [
    KernelMutation(
        "the first query that sees a key is hidden from it",
        f"{SEQUENCE}/visible_keys.h",
        "queries.first = max(first - diagonal, 0);",
        "queries.first = max(first - diagonal, 0) + 1;",
        "Causal128",
    ),
    KernelMutation(
        "the last query of a window is hidden from its key",
        f"{SEQUENCE}/visible_keys.h",
        "queries.last = last - diagonal;",
        "queries.last = last - diagonal - 1;",
        "Window64",
    ),
    KernelMutation(
        "the first block of queries under a causal mask is left out",
        f"{SCORE}/backward_work.h",
        "see_first.first / block_m",
        "see_first.first / block_m + 1",
        "Causal128",
    ),
    KernelMutation(
        "a block that the mask crosses counts as visible to all",
        f"{SCORE}/backward_work.h",
        "(see_last.first + block_m - 1) / block_m",
        "see_last.first / block_m",
        "Causal128",
    ),
    KernelMutation(
        "the last queries, fewer than a block, are left out",
        f"{SCORE}/backward_work.h",
        "(keys.q.used + block_m - 1) / block_m",
        "keys.q.used / block_m",
        "Full64",
    ),
    KernelMutation(
        "the query on the diagonal is hidden",
        f"{BACKWARD}/score_block.h",
        "8 * j + c < first",
        "8 * j + c <= first",
        "Causal128",
    ),
    KernelMutation(
        "all queries of a group are those of its first head",
        f"{BACKWARD}/producer.h",
        "work.template first_query_head<C>(params_) + group;\n      for",
        "work.template first_query_head<C>(params_);\n      for",
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
        f"{SCORE}/modifiers/alibi.h",
        "fabsf(distance), slope",
        "fabsf(distance + 1.0F), slope",
        "Alibi128",
    ),
    KernelMutation(
        "the softcap has no slope",
        f"{BACKWARD}/scores.h",
        "fmaxf(score::softcap_derivative(tanh), 0.0F)",
        "1.0F",
        "Softcap64",
    ),
]

JOINT = [
    KernelMutation(
        "dS is 2^12 too large in float16",
        f"{BACKWARD}/joint/halves.h",
        "x = {x.x * kProbabilityScale, x.y * kProbabilityScale};",
        "",
        "Full64",
    ),
    KernelMutation(
        "nobody waits for dS",
        f"{BACKWARD}/joint/query_warpgroup.h",
        "wait<C>(barriers_.handed_full[ds_.stage], ds_.parity);",
        "",
        "Causal128",
    ),
    KernelMutation(
        "dS is handed over at the wrong parity",
        f"{BACKWARD}/joint/key_warpgroup.h",
        "wait<C>(barriers_.handed_empty[ds_.stage], ds_.parity ^ 1);",
        "wait<C>(barriers_.handed_empty[ds_.stage], ds_.parity);",
        "Full64",
    ),
    KernelMutation(
        "dK and dV begin anew in each step", f"{BACKWARD}/joint/key_warpgroup.h", "started = true;", "", "Causal128"
    ),
    KernelMutation(
        "stages of dO are not released, those of Q twice",
        f"{BACKWARD}/joint/key_warpgroup.h",
        "arrive<C>(barriers_.do_empty[do_.stage]);",
        "arrive<C>(barriers_.q_empty[q_.stage]);",
        "Full64",
    ),
    KernelMutation(
        "dK is not scaled",
        f"{BACKWARD}/epilogue.h",
        "score::gradient_scale<C.rule>(params, work.k.used) * score_gradient_factor(C)",
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
        f"{SCORE}/exact_row.h",
        "finite && (row[column] & kExponent) != kExponent",
        "finite",
        "DeterministicTopLeft128",
    ),
    KernelMutation(
        "D is 2^12 too large",
        f"{BACKWARD}/roles/gradient_role.h",
        "scale_sums<C>(d_sum, kProbabilityScale *",
        "scale_sums<C>(d_sum,",
        "DeterministicTopLeft128",
    ),
    KernelMutation(
        "P is handed over at the wrong parity",
        f"{BACKWARD}/roles/probability_role.h",
        "wait<C>(barriers_.handed_empty[p_.stage], p_.parity ^ 1);",
        "wait<C>(barriers_.handed_empty[p_.stage], p_.parity);",
        "Causal256",
    ),
    KernelMutation(
        "nobody waits for P",
        f"{BACKWARD}/roles/gradient_role.h",
        "wait<C>(barriers_.handed_full[p_.stage], p_.parity);",
        "",
        "DeterministicTopLeft128",
    ),
    KernelMutation(
        "dQ lacks its last tile of keys",
        f"{BACKWARD}/query_gradient/tile.h",
        "min(seen.end, params.first_key_block + params.key_blocks)",
        "min(seen.end - 1, params.first_key_block + params.key_blocks)",
        "Causal256",
    ),
    KernelMutation(
        "dQ is made of the first key head",
        f"{BACKWARD}/query_gradient/kernel.h",
        "tile.head / params.heads_per_kv",
        "0",
        "Causal256",
    ),
]

# Sums of dQ that blocks of keys add to in order.
IN_ORDER = [
    KernelMutation(
        "the first to come adds to what lies there",
        f"{BACKWARD}/joint/query_sender.h",
        "if (semaphore.first()) {\n        cptx::cp_async_bulk(",
        "if (false) {\n        cptx::cp_async_bulk(",
        "GpuBackward.GivesTheSameBitsEveryTime/sm90",
    ),
    KernelMutation(
        "the last to come forgets what the others added",
        f"{BACKWARD}/joint/ordered_query_warpgroup.h",
        "load_sums(sums_of(block, part), dq);",
        "",
        "DeterministicCausal64",
    ),
    KernelMutation(
        "both parts of dQ go to the same place",
        f"{BACKWARD}/joint/ordered_query_warpgroup.h",
        "announce(sums_of(block, part), semaphore_at(block, m, part));",
        "announce(sums_of(block, 0), semaphore_at(block, m, part));",
        "DeterministicFull128",
    ),
    KernelMutation(
        "blocks of keys wait for those that come after them",
        f"{BACKWARD}/joint/query_gradient_order.h",
        ".before = visited<C>(params, work, work.n + work.direction),\n"
        "            .after = visited<C>(params, work, work.n - work.direction),",
        ".before = visited<C>(params, work, work.n - work.direction),\n"
        "            .after = visited<C>(params, work, work.n + work.direction),",
        "DeterministicFull128",
    ),
    KernelMutation(
        "senders do not tell that they are done",
        f"{BACKWARD}/joint/query_sender.h",
        "semaphore.pass_on();",
        "",
        "DeterministicCausal64",
    ),
    KernelMutation(
        "a staged part is overwritten before it was read",
        f"{BACKWARD}/joint/ordered_query_warpgroup.h",
        "wait<C>(barriers_.staged_empty, staged_parity_ ^ 1);\n      stage_sums",
        "stage_sums",
        "GpuBackward.GivesTheSameBitsEveryTime/sm90",
    ),
    KernelMutation(
        "dQ of the last to come is not scaled",
        f"{BACKWARD}/joint/ordered_query_warpgroup.h",
        "score::gradient_scale<C.rule>(params_, keys) * score_gradient_factor(C)",
        "score_gradient_factor(C)",
        "DeterministicFull128",
    ),
]

# Items that share a block of keys, each with some of a group's query heads.
PARTS = [
    KernelMutation(
        "all parts have the first heads",
        f"{BACKWARD}/work.h",
        "group_first = part * params.part_heads;",
        "group_first = 0 * part;",
        "GpuBackwardParts.TakeAPoisonedWorkspaceAndNoMore",
    ),
    KernelMutation(
        "the second part of the sums is left out",
        f"{BACKWARD}/finish_keys.h",
        "for (int part = 1; part < parts; ++part)",
        "for (int part = 2; part < parts; ++part)",
        "GpuBackwardParts.TakeAPoisonedWorkspaceAndNoMore",
    ),
    KernelMutation(
        "packed sequences share a block of sums",
        f"{BACKWARD}/key_sums.h",
        "starts[keys.sequence] / block_n(C) + keys.sequence",
        "starts[keys.sequence] / block_n(C)",
        "GpuBackwardParts.TakePackedSequencesAndUsedLengths",
    ),
]

# Kernels that start while the one before them ends, and do not wait for what it writes.
DEPENDENT_LAUNCHES = [
    KernelMutation(
        "LSE and D are read before they are written",
        f"{BACKWARD}/producer.h",
        "ptx::griddepcontrol_wait();",
        "",
        "GpuDependentLaunches.Of64",
    ),
    KernelMutation(
        "the sums of dQ are read before they are complete",
        f"{BACKWARD}/joint/finish.h",
        "ptx::griddepcontrol_wait();",
        "",
        "GpuDependentLaunches.Of64",
    ),
    KernelMutation(
        "dS is read before it is written",
        f"{BACKWARD}/query_gradient/kernel.h",
        "ptx::griddepcontrol_wait();\n  const auto tile",
        "const auto tile",
        "GpuDependentLaunches.Of256",
    ),
]

GRADIENTS = [*PREPARATION, *BACKWARD_TILES, *JOINT, *BY_ROLES, *IN_ORDER, *PARTS, *DEPENDENT_LAUNCHES]
