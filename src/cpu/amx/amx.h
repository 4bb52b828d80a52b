// SPDX-License-Identifier: Apache-2.0
// The bfloat16 kernels on AMX: the same tasks as kernels/kernels.h, with P and dS rounded to bfloat16.
#pragma once

#include <cstddef>

#include "cpu/kernels/task.h"

namespace strobe::cpu::amx {

/// Whether this process may use AMX tiles with bfloat16: the processor has them, and the operating system saves them.
/// Asks Linux for the permission, which then holds for the whole process.
bool available();

/// Runs a block of query rows to the end; scratch is what amx::ForwardScratch takes, 64-byte aligned.
void forward_block(const ForwardTask& task, std::byte* scratch);

/// Runs a block of keys to the end; scratch is what amx::BackwardScratch takes, 64-byte aligned. Waits for the blocks
/// of smaller keys as the vector kernel does. The dQ sums are transposed: [kBlock rows][head_dim in whole
/// blocks][kBlock].
void backward_block(const BackwardTask& task, std::byte* scratch);

/// dQ from transposed sums.
void write_query_gradient(const QueryGradientTask& task);

}  // namespace strobe::cpu::amx
