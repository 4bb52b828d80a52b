// SPDX-License-Identifier: Apache-2.0
// Which of a call's measured candidates a table of tuned choices gets.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "gpu/plan/candidates.h"

namespace strobe::program {

/// A candidate, and its milliseconds in each round.
struct MeasuredCandidate {
  gpu::Candidate candidate;
  std::vector<double> rounds;
};

/// The candidate to take, and how many times as fast as the rule's, the first, it is: 1 of the rule's, more of others.
struct TunedResult {
  std::size_t index = 0;
  double gain = 1.0;
  double milliseconds = 0.0;
};

/// The rule's, or `before`, the choice of an earlier table, where its median is still less than the rule's; unless
/// another is more than 2% faster than that, both by its median and in all rounds but one. Of those within 2% of the
/// fastest the one that the model ranks first.
TunedResult choose_measured(const std::vector<MeasuredCandidate>& measured, std::optional<gpu::Choice> before);

}  // namespace strobe::program
