// SPDX-License-Identifier: Apache-2.0
// What a tune measures of a call: the planner's rule, and the few choices that the model of the device ranks beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpu/plan/choice.h"
#include "gpu/plan/times.h"

namespace strobe::gpu {

struct Candidate {
  Choice choice;
  double seconds = 0.0;  // predicted
};

/// Gathers candidates, the planner's own first, each plan once.
class Candidates {
 public:
  /// What a plan by that choice has to do on the device. `plan`: a text that tells plans apart.
  void add(const Choice& choice, const DeviceShape& shape, const PlannedWork& work, const std::string& plan);

  /// The last one added is measured however slow the model says it is: the rule's, which the model has left.
  void measure_last() { measured_ = all_.back(); }

  /// The planner's, and then up to five: one that is measured whatever it takes; with the rule's tiles those within a
  /// tenth of the fastest such, and up to two with other tiles within a tenth of the fastest of all. The fastest come
  /// first, of equally fast ones those that were added first.
  std::vector<Candidate> ranked() const;

 private:
  std::vector<Candidate> all_;
  std::vector<std::string> plans_;
  std::optional<Candidate> measured_;
};

/// Numbers near `rule` from 1 to `most`, the nearest first: its halves and doubles, and what divides `most` around it.
std::vector<int> numbers_near(std::int64_t rule, std::int64_t most);

}  // namespace strobe::gpu
