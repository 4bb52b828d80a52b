// SPDX-License-Identifier: Apache-2.0
// The bfloat16 kernels on matrix tiles or dot products: the same tasks as kernels/kernels.h, with P and dS rounded to
// bfloat16.
#pragma once

#include <cstddef>

#include "cpu/bfloat16/unit.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu::bf16 {

/// Whether this build's kernels for this processor include those below.
bool has_kernels();

/// What the engine uses: processor_unit(), where there are kernels for it. The blocks take it, and never `none`.
Unit unit();

/// Runs a block of query rows to the end; scratch is what bf16::ForwardScratch takes, 64-byte aligned.
void forward_block(Unit unit, const ForwardTask& task, std::byte* scratch);

/// Runs a block of keys to the end; scratch is what bf16::BackwardScratch takes, 64-byte aligned. Waits for the blocks
/// of smaller keys as the vector kernel does. The dQ sums are transposed: [kBlock rows][head_dim in whole
/// blocks][kBlock].
void backward_block(Unit unit, const BackwardTask& task, std::byte* scratch);

/// Scratch is what bf16::NormalizerScratch takes, 64-byte aligned.
void normalize_rows(Unit unit, const NormalizerTask& task, std::byte* scratch);

/// dQ from transposed sums.
void write_query_gradient(const QueryGradientTask& task);

}  // namespace strobe::cpu::bf16
