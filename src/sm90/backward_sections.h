// SPDX-License-Identifier: Apache-2.0
// How many key heads the sm90 backward has in flight at once (kernels/sm90/backward/work.h).
#pragma once

#include <cstdint>

#include "call/problem.h"
#include "gpu/plan/device.h"
#include "sm90/backward_plan.h"

namespace strobe::sm90 {

/// Sequences that are long enough for blocks of keys of a head to follow each other without waiting, where they start
/// in different waves.
// log: dq-order-more-heads
inline constexpr std::int64_t kLongCausal = 8192;

/// Key heads of all sequences.
std::int64_t launched_heads(const AttentionProblem& problem);

/// Key heads that are in flight at once, at least one: few enough for what they read and add to to stay in L2, enough
/// for every multiprocessor to have work. The plan's config and params.n_blocks are read.
std::int64_t section_heads(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan);

}  // namespace strobe::sm90
