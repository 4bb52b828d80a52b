// SPDX-License-Identifier: Apache-2.0
// The candidates of a call in turns on this machine's GPU.
#pragma once

#include <functional>
#include <vector>

#include "call/problem.h"
#include "gpu/plan/candidates.h"
#include "gpu/stream.h"
#include "runtime/device.h"
#include "strobe/status.h"
#include "tune_choice.h"

namespace strobe::program {

inline constexpr int kTuneRounds = 7;

/// Times all candidates, one each a round, after one round to warm up, between CUDA events; L2 is not flushed.
/// `step` is called before each turn; empty where Ctrl-C came before they were done.
Result<std::vector<MeasuredCandidate>> measure_candidates(const AttentionProblem& problem,
                                                          const std::vector<gpu::Candidate>& candidates,
                                                          const runtime::CudaDevice& device, const gpu::Stream& stream,
                                                          const std::function<void()>& step);

}  // namespace strobe::program
