// SPDX-License-Identifier: Apache-2.0
#include "tune_measure.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/command/gpu_call.h"
#include "bench/command/median.h"
#include "gpu/call/override.h"
#include "interrupt.h"
#include "tune_tensors.h"

namespace strobe::program {
namespace {

using gpu::Candidate;
using gpu::PlannedChoice;

struct Turn {
  gpu::Candidate candidate;
  std::function<Status()> call;
  int launches = 1;
};

/// Plans of all candidates on the same tensors, but for others than the rule's that cannot be had: their kernels are
/// compiled at the first call, where there is a compiler.
template <class Arguments>
Result<std::vector<Turn>> make_turns(const Arguments& host, const AttentionOptions& options,
                                     const std::vector<Candidate>& candidates, const runtime::CudaDevice& device,
                                     const gpu::Stream& stream) {
  constexpr double kTurnSeconds = 3e-3;
  Result<gpu::MirroredCall<Arguments>> copied = gpu::MirroredCall<Arguments>::make(host, device);
  if (!copied.ok()) return copied.status();
  const auto mirrored = std::make_shared<const gpu::MirroredCall<Arguments>>(std::move(*copied));
  std::vector<Turn> turns;
  for (const Candidate& candidate : candidates) {
    const gpu::Override<PlannedChoice> override([&](PlannedChoice& planned) { planned = {candidate.choice, 0.0}; });
    const Result<Plan> plan = make_plan(mirrored->arguments(), options);
    if (!plan.ok() && !turns.empty()) continue;
    if (!plan.ok()) return plan.status();
    turns.push_back({.candidate = candidate,
                     .call = [mirrored, plan = *plan,
                              handle = stream.get()] { return plan.run(mirrored->arguments(), {.stream = handle}); },
                     .launches = static_cast<int>(std::clamp(kTurnSeconds / candidate.seconds, 2.0, 20.0))});
  }
  return turns;
}

}  // namespace

Result<std::vector<MeasuredCandidate>> measure_candidates(const AttentionProblem& problem,
                                                          const std::vector<Candidate>& candidates,
                                                          const runtime::CudaDevice& device, const gpu::Stream& stream,
                                                          const std::function<void()>& step) {
  Result<TuneTensors> made = tune_tensors(problem);
  if (!made.ok()) return made.status();
  const Result<std::vector<Turn>> turns = problem.pass == Pass::forward
                                              ? make_turns(made->forward(), made->options, candidates, device, stream)
                                              : make_turns(made->backward(), made->options, candidates, device, stream);
  if (!turns.ok()) return turns.status();
  std::vector<MeasuredCandidate> measured;
  for (const Turn& turn : *turns) measured.push_back({turn.candidate, {}});
  for (int round = -1; round < kTuneRounds; ++round) {  // round -1 warms up
    for (std::size_t i = 0; i < turns->size(); ++i) {
      step();
      if (Interruptible::interrupted()) return std::vector<MeasuredCandidate>();
      const Result<std::vector<double>> times = stream.time((*turns)[i].launches, (*turns)[i].call);
      if (!times.ok()) return times.status();
      if (round >= 0) measured[i].rounds.push_back(median(*times));
    }
  }
  return measured;
}

}  // namespace strobe::program
