// SPDX-License-Identifier: Apache-2.0
#include "api/plan_cache.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace strobe::api {
namespace {

// More than the layers and phases of most models have; comparing an entry takes a few nanoseconds.
constexpr std::size_t kMostPlans = 32;

struct Entry {
  AttentionProblem problem;
  Engine engine;
  std::string kernels;
  int threads;
  std::shared_ptr<const engine::PlannedCall> call;
};

/// The one used last is in front.
std::vector<Entry>& entries() {
  thread_local std::vector<Entry> plans;
  return plans;
}

}  // namespace

std::shared_ptr<const engine::PlannedCall> find_plan(const AttentionProblem& problem, const Execution& execution) {
  std::vector<Entry>& plans = entries();
  const auto found = std::ranges::find_if(plans, [&](const Entry& entry) {
    return entry.problem == problem && entry.engine == execution.engine && entry.kernels == execution.kernels &&
           entry.threads == execution.threads;
  });
  if (found == plans.end()) return nullptr;
  std::rotate(plans.begin(), found, found + 1);
  return plans.front().call;
}

void keep_plan(const AttentionProblem& problem, const Execution& execution,
               std::shared_ptr<const engine::PlannedCall> call) {
  std::vector<Entry>& plans = entries();
  if (plans.size() == kMostPlans) plans.pop_back();
  plans.insert(plans.begin(),
               {problem, execution.engine, std::string(execution.kernels), execution.threads, std::move(call)});
}

}  // namespace strobe::api
