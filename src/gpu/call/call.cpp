// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace strobe::gpu {
namespace {

std::string explain_normalization(const AttentionProblem& problem) {
  return is_normalized(problem) ? "" : "normalize     none: P is the scores; no maximum, no sum\n";
}

}  // namespace

Call::Call(const Request& request, std::size_t workspace_bytes)
    : problem_(request.problem),
      device_(request.device),
      shape_(request.shape),
      family_(request.family),
      reason_(request.reason),
      choice_(request.choice),
      workspace_bytes_(workspace_bytes),
      pool_(request.device, std::max<std::size_t>(workspace_bytes, 1)) {}

std::string Call::explain() const {
  const std::string memory = workspace_bytes_ == 0 ? "none" : fmt::format("{} bytes", workspace_bytes_);
  return fmt::format("engine        gpu ({}): {}\n{}{}{}workspace     {}\n{}", family_, reason_, explain_plan(),
                     explain_normalization(problem_), explain_choice(choice_), memory, explain_times(shape_, work()));
}

}  // namespace strobe::gpu
