# SPDX-License-Identifier: Apache-2.0
"""The ways in which run_gpu.py breaks the sm90 kernels, and which test must notice each."""

from dataclasses import dataclass

from tree import Mutation

KERNELS = "src/kernels"
SCORE = f"{KERNELS}/score"
SEQUENCE = f"{KERNELS}/sequence"
AUXILIARY = f"{KERNELS}/auxiliary"
FORWARD = f"{KERNELS}/sm90/forward"
BACKWARD = f"{KERNELS}/sm90/backward"


@dataclass(frozen=True)
class KernelMutation(Mutation):
    test: str  # a filter for gpu_tests; alone the name of one of GpuOptions


BOTH_PASSES = [
    KernelMutation(
        "the causal mask is off by one",
        f"{SEQUENCE}/visible_keys.h",
        "center + params.window_right",
        "center + params.window_right + 1",
        "Causal128",
    ),
    KernelMutation(
        "a window begins one key late",
        f"{SEQUENCE}/visible_keys.h",
        "center - params.window_left",
        "center - params.window_left + 1",
        "Window64",
    ),
    KernelMutation(
        "a chunk ends one key late",
        f"{SEQUENCE}/visible_keys.h",
        "begin + params.chunk - 1",
        "begin + params.chunk",
        "Chunk128",
    ),
    KernelMutation(
        "whole parts of tiles lose their last block",
        f"{KERNELS}/scheduler/split_scheduler.h",
        "min(blocks, part.first + work_.most_blocks);",
        "min(blocks, part.first + work_.most_blocks - 1);",
        "GpuForward.GivesCtasWholePartsOfTilesWhereThatIsEven/sm90",
    ),
    KernelMutation(
        "parts of a row that begins a sequence are taken for the sequence's before",
        f"{AUXILIARY}/combine.h",
        "params.cu_seqlens_q[index + 1] <= row",
        "params.cu_seqlens_q[index + 1] < row",
        "GpuCache.PackedQueriesOfAMixedBatch/sm90",
    ),
    KernelMutation(
        "a part's keys begin where the whole's do",
        f"{SEQUENCE}/visible_keys.h",
        "sequence.diagonal = first.q - first.k;",
        "sequence.diagonal = first.q;",
        "GpuOffsets.Causal/sm90",
    ),
    KernelMutation(
        "chunks are counted from a part's first key",
        f"{SEQUENCE}/visible_keys.h",
        "chunk_begin(center + first_key, params.chunk) - first_key",
        "chunk_begin(center, params.chunk)",
        "GpuOffsets.Chunks/sm90",
    ),
    KernelMutation(
        "dropout of any part draws as if it began at a patch",
        "src/kernels/score/modifiers/dropout.h",
        "(first.q | first.k) % kPositionsOfPatches == 0",
        "kPositionsOfPatches != 0",
        "GpuOffsets.Dropout/sm90",
    ),
    KernelMutation(
        "the diagonal ends in the corner of what a sequence owns",
        f"{SEQUENCE}/visible_keys.h",
        "sequence.k.used - sequence.q.used",
        "sequence.k.owned - sequence.q.owned",
        "Packed",
    ),
    KernelMutation(
        "the softcap is too steep",
        f"{SCORE}/modifiers/softcap.h",
        "score * params.exponent",
        "score * 1.05F * params.exponent",
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
        "the row sum is not rescaled",
        f"{SCORE}/softmax.h",
        "R.row_invariant ? __fmul_rn(sum[r], correction[r]) : sum[r] * correction[r]",
        "sum[r]",
        "SharpScores128",
    ),
    KernelMutation(
        "the output is not rescaled",
        f"{FORWARD}/store/accumulator.h",
        "o[i] *= factor[i / 2 % kRowsPerThread];",
        "",
        "SharpScores128",
    ),
    KernelMutation(
        "LSE is in base 2", f"{SCORE}/lse.h", "ptx::lg2_approx(sum)) * kLn2", "ptx::lg2_approx(sum))", "Full64"
    ),
    KernelMutation(
        "the sink is dropped",
        f"{SCORE}/softmax.h",
        "__fmaf_rn(sum[r], shrunk, ptx::ex2_approx(logit_log2 - raised))",
        "sum[r] * shrunk",
        "SinkAndLargestScores64",
    ),
    KernelMutation(
        "ALiBi measures from the next key",
        f"{SCORE}/modifiers/alibi.h",
        "fabsf(distance), score",
        "fabsf(distance + 1.0F), score",
        "Alibi128",
    ),
    KernelMutation(
        "exponents of large scores are one operation, too",
        f"{SCORE}/softmax.h",
        "return fabsf(max_log2[r]) >= kMostFused &&",
        "return false &&",
        "GpuLargeScoresWith.RandomScoresHaveTheSameRoundingsInBothPasses/sm90_bfloat16_d64",
    ),
    KernelMutation(
        "a negative scale is left out",
        f"{SCORE}/apply.h",
        "rule.scale_first   ? __fmul_rn(score, params.scale_log2)",
        "rule.scale_first   ? score",
        "NegativeScale64",
    ),
    KernelMutation(
        "the largest score is the last one",
        f"{SCORE}/softmax.h",
        "top[r] = fmaxf(top[r], highest[r]);",
        "top[r] = highest[r];",
        "SinkAndLargestScores64",
    ),
]

FORWARD_PIPELINE = [
    KernelMutation(
        "nobody waits for K",
        f"{FORWARD}/consume/rings.h",
        "wait<C>(barriers_.k_full[k_at_.stage], k_at_.parity);",
        "",
        "Causal128",
    ),
    KernelMutation(
        "K and V are loaded at the wrong parity",
        f"{FORWARD}/produce/keys.h",
        "} else {\n      wait<C>(empty_[at_.stage], at_.parity);",
        "} else {\n      wait<C>(empty_[at_.stage], at_.parity ^ 1);",
        "Full64",
    ),
    KernelMutation(
        "all query heads read the first key head",
        f"{FORWARD}/produce/key_cursor.h",
        "params_.by_heads_per_kv.quotient(work_.tile.head)",
        "0",
        "Full64",
    ),
    KernelMutation(
        "the last block of keys is left out",
        f"{FORWARD}/tile/work.h",
        "work.n_end = blocks.end;",
        "work.n_end = max(blocks.end - 1, blocks.begin);",
        "Full64",
    ),
    KernelMutation(
        "stages of K are never released",
        f"{FORWARD}/consume/rings.h",
        "arrive<C>(barriers_.k_empty[k_at_.stage]);",
        "",
        "Causal128",
    ),
    KernelMutation(
        "rows that see no key are divided by their sum",
        f"{FORWARD}/store/output.h",
        "exists && softmax.sum[r] != 0.0F",
        "exists",
        "Causal128",
    ),
    KernelMutation(
        "LSE of rows that see no key is 0",
        f"{FORWARD}/store/empty.h",
        "exists ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) * kLn2 : kMinusInfinity",
        "0.0F",
        "Causal128",
    ),
]

PLAIN = [*BOTH_PASSES, *SOFTMAX, *FORWARD_PIPELINE]
