// SPDX-License-Identifier: Apache-2.0
#include "tune_measure.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/command/gpu_call.h"
#include "bench/command/peers.h"
#include "gpu/call/override.h"
#include "interrupt.h"
#include "tune_tensors.h"

namespace strobe::program {
namespace {

constexpr double kMore = 1.02;  // times as fast

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

/// How many times as fast as `than` it is, in all rounds but one.
double ratio(const MeasuredCandidate& than, const MeasuredCandidate& it) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < it.rounds.size(); ++round) {
    ratios.push_back(than.rounds[round] / it.rounds[round]);
  }
  std::ranges::sort(ratios);
  return ratios.size() > 1 ? ratios[1] : ratios.front();
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

TunedResult choose_measured(const std::vector<MeasuredCandidate>& measured, std::optional<gpu::Choice> before) {
  const auto kept = std::ranges::find_if(
      measured, [&](const MeasuredCandidate& one) { return before.has_value() && one.candidate.choice == *before; });
  const std::size_t standing = kept == measured.end() ? 0 : static_cast<std::size_t>(kept - measured.begin());
  std::vector<double> ratios;
  for (const MeasuredCandidate& one : measured) ratios.push_back(ratio(measured[standing], one));
  const double best = std::ranges::max(ratios);
  std::size_t chosen = standing;
  if (best > kMore) {
    const auto near = std::ranges::find_if(ratios, [&](double one) { return one > kMore && kMore * one >= best; });
    chosen = static_cast<std::size_t>(near - ratios.begin());
  }
  const double milliseconds = median(measured[chosen].rounds);
  return {.index = chosen,
          .gain = chosen == 0 ? 1.0 : median(measured[0].rounds) / milliseconds,
          .milliseconds = milliseconds};
}

}  // namespace strobe::program
