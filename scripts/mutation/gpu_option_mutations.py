# SPDX-License-Identifier: Apache-2.0
"""The ways in which run_gpu.py breaks dropout, bias, block masks, log-length scaling, float32 and qv."""

from gpu_mutations import BACKWARD, KERNELS, SCORE, KernelMutation

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
        "return marks_dropped(C.rule) ? score::mark_dropped(halves, slices, i, j) : halves;",
        "return halves;",
        "Dropout",
    ),
    KernelMutation(
        "dV is not divided by the probability of being kept",
        f"{BACKWARD}/epilogue.h",
        "C.rule.dropout ? kScale * params.score.dropout.keep_factor : kScale",
        "kScale",
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
        f"{BACKWARD}/bias_ring.h",
        "queries < C.block_m && !shared_rows",
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
    KernelMutation(
        "log-length scaling never shrinks to 1",
        f"{SCORE}/modifiers/log_length.h",
        "fmaxf(1.0F, ptx::lg2_approx",
        "fmaxf(0.0F, ptx::lg2_approx",
        "LogLength",
    ),
    KernelMutation(
        "dK and dQ lack the factor of log-length scaling",
        f"{SCORE}/apply.h",
        "ProductFactor<R>(params.score, keys).times(params.scale)",
        "params.scale + 0 * keys",
        "LogLength",
    ),
    KernelMutation(
        "float32 products lack the low part of A",
        f"{KERNELS}/ptx/split_numbers.h",
        "mma_m16n8k8_tf32(d, a[1].low, b.high[2], b.high[3], d[0], d[1], d[2], d[3]);\n"
        "  mma_m16n8k8_tf32(d, a[1].high, b.low[2], b.low[3], d[0], d[1], d[2], d[3]);\n"
        "  mma_m16n8k8_tf32(d, a[0].high, b.high[0]",
        "mma_m16n8k8_tf32(d, a[1].high, b.low[2], b.low[3], d[0], d[1], d[2], d[3]);\n"
        "  mma_m16n8k8_tf32(d, a[0].high, b.high[0]",
        "GpuFloat32.MatchesTheReference/sm80",
    ),
    KernelMutation(
        "latent rows of a cache in 8 bits are converted by another sequence's scale",
        f"{KERNELS}/sequence/stored_cache.h",
        "params.scales.of(sequence, 0)",
        "params.scales.of(0, 0)",
        "GpuStored.LatentPagesMatchReference/sm90",
    ),
    KernelMutation(
        "rotated columns of the second product's queries are others",
        f"{KERNELS}/sm90/forward/produce/query.h",
        "load(context.q, panel - own);",
        "load(context.q, panel);",
        "GpuQueryValues.OfAbsorbedHeads/sm90",
    ),
    KernelMutation(
        "rotated columns of keys beside a second product are none",
        f"{KERNELS}/sm90/forward/produce/wide.h",
        "C.head_dim_v - first_own_column(C, context.params)",
        "C.head_dim_v",
        "GpuQueryValues.OfAbsorbedHeads/sm90",
    ),
    KernelMutation(
        "keys beside a second product begin with V's row",
        f"{KERNELS}/sm80/forward/slice_ring.h",
        "of_keys ? column - own : column",
        "column",
        "GpuQueryValues.OfAbsorbedHeads/sm80",
    ),
]
