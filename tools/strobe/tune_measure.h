// SPDX-License-Identifier: Apache-2.0
// The candidates of a call in turns on this machine's GPU.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "call/problem.h"
#include "gpu/plan/candidates.h"
#include "gpu/stream.h"
#include "runtime/device.h"
#include "strobe/status.h"

namespace strobe::program {

inline constexpr int kTuneRounds = 7;

/// A candidate, and its milliseconds in each round.
struct MeasuredCandidate {
  gpu::Candidate candidate;
  std::vector<double> rounds;
};

/// Times all candidates, one each a round, after one round to warm up, between CUDA events; L2 is not flushed.
/// `step` is called before each turn; empty where Ctrl-C came before they were done.
Result<std::vector<MeasuredCandidate>> measure_candidates(const AttentionProblem& problem,
                                                          const std::vector<gpu::Candidate>& candidates,
                                                          const runtime::CudaDevice& device, const gpu::Stream& stream,
                                                          const std::function<void()>& step);

/// The candidate to take, and how many times as fast as the rule's, the first, it is.
struct TunedResult {
  std::size_t index = 0;
  double gain = 1.0;
  double milliseconds = 0.0;
};

/// The rule's, or `before`, the choice of an earlier table, unless another is more than 2% faster than that in all
/// rounds but one; of those within 2% of the fastest the one that the model ranks first.
TunedResult choose_measured(const std::vector<MeasuredCandidate>& measured, std::optional<gpu::Choice> before);

}  // namespace strobe::program
