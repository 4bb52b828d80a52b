// SPDX-License-Identifier: Apache-2.0
// A backward's items in their order (kernels/sm90/backward/work.h) on the multiprocessors of a device, for the model of
// its time: who waits for whom, how the last ones end, and what L2 still holds of the rows that items share.
#pragma once

#include <cstdint>
#include <optional>

#include "call/problem.h"
#include "sm90/backward_plan.h"

namespace strobe::sm90 {

struct SimulatedOrder {
  double steps = 0.0;      // until the last item ends: blocks of queries by blocks of keys, one after another
  double read_rows = 0.0;  // query rows of a head that came from memory, each as often as it came
};

/// `query_bytes`: what L2 holds for a query row of a head. None where there is nothing to compute, or too much to
/// simulate.
std::optional<SimulatedOrder> simulate_order(const AttentionProblem& problem, const DeviceShape& shape,
                                             const BackwardPlan& plan, double query_bytes);

}  // namespace strobe::sm90
