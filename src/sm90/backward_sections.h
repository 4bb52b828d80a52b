// SPDX-License-Identifier: Apache-2.0
// How many key heads the sm90 backward has in flight at once (kernels/sm90/backward/work.h).
#pragma once

#include <cstdint>

#include "call/problem.h"
#include "gpu/plan/device.h"
#include "kernels/sm90/backward/config.h"

namespace strobe::sm90 {

/// Sequences that are long enough for blocks of keys of a head to follow each other without waiting, where they start
/// in different waves.
// log: dq-order-more-heads
inline constexpr std::int64_t kLongCausal = 8192;

/// Bytes of a query's sums of dQ in global memory.
std::int64_t sum_bytes(const AttentionProblem& problem, const backward::Config& config);

/// Key heads that are in flight at once, at least one: few enough for what they read and add to to stay in L2, enough
/// for every multiprocessor to have work. `key_blocks`: of the longest sequence. `wanted` heads, if that is not 0.
std::int64_t section_heads(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                           const backward::Config& config, std::int64_t key_blocks, int wanted = 0);

}  // namespace strobe::sm90
