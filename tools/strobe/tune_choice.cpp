// SPDX-License-Identifier: Apache-2.0
#include "tune_choice.h"

#include <algorithm>

#include "bench/command/median.h"

namespace strobe::program {
namespace {

constexpr double kMore = 1.02;  // times as fast

double ratio_of_medians(const MeasuredCandidate& than, const MeasuredCandidate& it) {
  return median(than.rounds) / median(it.rounds);
}

/// In all rounds but one.
double ratio_in_rounds(const MeasuredCandidate& than, const MeasuredCandidate& it) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < it.rounds.size(); ++round) {
    ratios.push_back(than.rounds[round] / it.rounds[round]);
  }
  std::ranges::sort(ratios);
  return ratios.size() > 1 ? ratios[1] : ratios.front();
}

/// How many times as fast as `than` it surely is. Where a clock drifts, rounds agree on what medians deny, and medians
/// on what single rounds do: the less of both counts.
double ratio(const MeasuredCandidate& than, const MeasuredCandidate& it) {
  return std::min(ratio_in_rounds(than, it), ratio_of_medians(than, it));
}

/// What others have to be faster than.
std::size_t standing_of(const std::vector<MeasuredCandidate>& measured, const std::optional<gpu::Choice>& before) {
  for (std::size_t i = 1; before.has_value() && i < measured.size(); ++i) {
    if (measured[i].candidate.choice == *before && ratio_of_medians(measured[0], measured[i]) > 1.0) return i;
  }
  return 0;
}

}  // namespace

TunedResult choose_measured(const std::vector<MeasuredCandidate>& measured, std::optional<gpu::Choice> before) {
  const std::size_t standing = standing_of(measured, before);
  std::vector<double> ratios;
  for (const MeasuredCandidate& one : measured) ratios.push_back(ratio(measured[standing], one));
  const double best = std::ranges::max(ratios);
  std::size_t chosen = standing;
  if (best > kMore) {
    const auto near = std::ranges::find_if(ratios, [&](double one) { return one > kMore && kMore * one >= best; });
    chosen = static_cast<std::size_t>(near - ratios.begin());
  }
  return {.index = chosen,
          .gain = chosen == 0 ? 1.0 : ratio_of_medians(measured[0], measured[chosen]),
          .milliseconds = median(measured[chosen].rounds)};
}

}  // namespace strobe::program
