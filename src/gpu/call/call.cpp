// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "expression/formula.h"

namespace strobe::gpu {
namespace {

/// What texts say, where they are not options that the plan has.
std::string explain_texts(const ExpressionShape& expression) {
  if (!expression.given()) return {};
  std::string text = "texts         compiled into the kernels";
  if (expression.score_is_option) text += "; the score is an option's";
  if (expression.mask_is_option) text += "; the mask is an option's";
  text += '\n';
  std::istringstream lines(expression.formula->explain());
  for (std::string line; std::getline(lines, line);) text += fmt::format("              {}\n", line);
  return text;
}

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
  return fmt::format("engine        gpu ({}): {}\n{}{}{}{}workspace     {}\n{}", family_, reason_, explain_plan(),
                     explain_normalization(problem_), explain_texts(problem_.expression), explain_choice(choice_),
                     memory, explain_times(shape_, work()));
}

}  // namespace strobe::gpu
