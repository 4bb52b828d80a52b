# SPDX-License-Identifier: Apache-2.0
"""The ways in which run_gpu.py breaks dropout, bias and block masks in the sm90 kernels."""

from gpu_mutations import BACKWARD, SCORE, KernelMutation

OPTIONS = [
    KernelMutation(
        "lanes of odd rows keep the slices of even ones",
        f"{SCORE}/modifiers/dropout.h",
        "second = odd ? of_odd : got;",
        "second = odd ? of_even : got;",
        "Dropout",
    ),
    KernelMutation(
        "by roles, dS does not know what was dropped",
        f"{BACKWARD}/roles/probability_role.h",
        "return score::mark_dropped(halves, slices, i, j);",
        "return halves;",
        "Dropout",
    ),
    KernelMutation(
        "dV is not divided by the probability of being kept",
        f"{BACKWARD}/epilogue.h",
        "C.rule.dropout ? kProbabilityScale * params.score.dropout.keep_factor : kProbabilityScale",
        "kProbabilityScale",
        "Dropout",
    ),
    KernelMutation(
        "a search for visible blocks finds those before its start",
        f"{BACKWARD}/visible_blocks.h",
        "shown_ >> (from - window)",
        "shown_",
        "BlockMask",
    ),
    KernelMutation(
        "dQ's kernel looks at the block mask of the next queries",
        f"{BACKWARD}/query_gradient/tile.h",
        "tile_.m_first * kScoreTile,\n                                         tile * kScoreTile",
        "0, tile * kScoreTile",
        "BlockMask",
    ),
    KernelMutation(
        "the backward's bias is subtracted",
        f"{SCORE}/apply.h",
        "__fmaf_rn(bias, -kLog2E, sum)",
        "__fmaf_rn(bias, kLog2E, sum)",
        "Bias64",
    ),
    KernelMutation(
        "the bias of queries that do not exist is not cleared",
        f"{BACKWARD}/roles/probability_role.h",
        "queries < C.block_m && params_.bias_boxes.rows > 1",
        "false && queries < 0",
        "Bias64",
    ),
    KernelMutation(
        "the bias's gradient lacks D",
        f"{BACKWARD}/bias_gradient/kernel.h",
        "p[i] * (gradient - d)",
        "p[i] * gradient",
        "Bias64",
    ),
    KernelMutation(
        "the bias's gradient is that of the first sequence that shares it",
        f"{SCORE}/bias_gradient.h",
        "bias.per_batch != 0 ? 1 : params.sequences.sequences",
        "1",
        "Bias64",
    ),
]
