// SPDX-License-Identifier: Apache-2.0
// The kernels of the instruction set that this machine runs, chosen when the first is called.
#pragma once

#include <cstddef>

#include "cpu/kernels/few_queries.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

KernelTraits kernel_traits();

/// Runs a block of query rows to the end; scratch is what ForwardScratch takes, 64-byte aligned.
void forward_block(const ForwardTask& task, std::byte* scratch);

/// Runs a block of query rows and their tangents to the end; scratch is what JvpScratch takes.
void jvp_block(const JvpTask& task, std::byte* scratch);

/// Runs a chunk of keys with every row of the task's heads; scratch is what FewQueriesScratch takes, 64-byte aligned.
void few_queries_chunk(const FewQueriesTask& task, std::byte* scratch);

/// Merges the states of one group of heads, `stride` floats apart, in the order of the chunks, and writes its rows.
/// `scratch` is few_queries_chunk()'s, of which a row of V is used.
void merge_few_queries(const ForwardTask& task, const float* states, std::int64_t chunks, std::int64_t stride,
                       std::byte* scratch);

/// Runs a block of keys to the end; scratch is what BackwardScratch takes, 64-byte aligned. Waits for the blocks of
/// smaller keys: they must have been started before this one.
void backward_block(const BackwardTask& task, std::byte* scratch);

void compute_delta(const DeltaTask& task);

/// Scratch is what NormalizerScratch takes, 64-byte aligned.
void normalize_rows(const NormalizerTask& task, std::byte* scratch);
void write_query_gradient(const QueryGradientTask& task);

}  // namespace strobe::cpu
