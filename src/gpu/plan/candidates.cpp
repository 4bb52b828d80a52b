// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/candidates.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace strobe::gpu {
namespace {

/// Those with the rule's tiles but for the first, within a tenth of the fastest such; or those with others, within a
/// tenth of the fastest of all.
std::vector<Candidate> fastest(const std::vector<Candidate>& all, bool other_tiles) {
  constexpr double kWithin = 1.1;
  std::vector<Candidate> group;
  for (const Candidate& candidate : all) {
    if (candidate.choice.has_tiles() == other_tiles) group.push_back(candidate);
  }
  if (group.empty()) return {};
  const double least = std::ranges::min(other_tiles ? all : group, {}, &Candidate::seconds).seconds;
  if (!other_tiles) group.erase(group.begin());
  std::erase_if(group, [&](const Candidate& candidate) { return candidate.seconds > kWithin * least; });
  std::ranges::stable_sort(group, {}, &Candidate::seconds);
  return group;
}

}  // namespace

void Candidates::add(const Choice& choice, const DeviceShape& shape, const PlannedWork& work, const std::string& plan) {
  if (std::ranges::find(plans_, plan) != plans_.end()) return;
  plans_.push_back(plan);
  all_.push_back({choice, predicted_times(shape, work).seconds()});
}

std::vector<Candidate> Candidates::ranked() const {
  constexpr std::size_t kMost = 6;
  constexpr std::size_t kMostOfOthers = 2;  // as the model compares one kernel with another less well than orders
  if (all_.empty()) return {};
  std::vector<Candidate> ranked = fastest(all_, false);
  const std::vector<Candidate> others = fastest(all_, true);
  const std::size_t apart = 1 + std::size_t{measured_.has_value()};
  ranked.resize(std::min(ranked.size(), kMost - apart - std::min(kMostOfOthers, others.size())));
  ranked.insert(ranked.begin(), all_.front());
  if (measured_.has_value()) ranked.push_back(*measured_);
  for (const Candidate& other : others) {
    const bool is_in = measured_.has_value() && other.choice == measured_->choice;
    if (ranked.size() < kMost && !is_in) ranked.push_back(other);
  }
  return ranked;
}

std::vector<int> numbers_near(std::int64_t rule, std::int64_t most) {
  std::set<std::int64_t> numbers;
  for (const std::int64_t number : {rule / 8, rule / 4, rule / 2, 2 * rule, 4 * rule, most}) {
    if (number >= 1 && number <= most) numbers.insert(number);
  }
  for (std::int64_t number = std::max<std::int64_t>(1, rule / 8); number <= std::min(most, 4 * rule); ++number) {
    if (most % number == 0) numbers.insert(number);
  }
  numbers.erase(rule);
  std::vector<int> near(numbers.begin(), numbers.end());
  const auto distance = [&](int number) {
    return std::abs(std::log(static_cast<double>(number) / static_cast<double>(rule)));
  };
  std::ranges::stable_sort(near, {}, distance);
  return near;
}

}  // namespace strobe::gpu
