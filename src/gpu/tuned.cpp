// SPDX-License-Identifier: Apache-2.0
#include "gpu/tuned.h"

#include <bit>
#include <cstdint>

#include "call/problem_text.h"
#include "runtime/tuned_table.h"

namespace strobe::gpu {
namespace {

/// The power of two whose ratio to the number is the least; what is not positive stays.
std::int64_t nearest_power(std::int64_t number) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (number <= 0 || number >= kMost) return std::min(number, kMost);
  const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(number)));
  return number * number < 2 * below * below ? below : 2 * below;
}

}  // namespace

AttentionProblem tuned_call(AttentionProblem problem) {
  for (std::int64_t* const number : {&problem.batch, &problem.seqlen_q, &problem.seqlen_k, &problem.window.left,
                                     &problem.window.right, &problem.chunk}) {
    *number = nearest_power(*number);
  }
  problem.total_q = problem.packed_q ? nearest_power(problem.total_q) : problem.batch * problem.seqlen_q;
  problem.total_k = problem.packed_k ? nearest_power(problem.total_k) : problem.batch * problem.seqlen_k;
  problem.device = {};
  problem.scale = problem.scale > 0.0F ? 1.0F : -1.0F;
  problem.softcap = problem.softcap > 0.0F ? 1.0F : 0.0F;
  problem.dropout = problem.dropout > 0.0F ? 0.5F : 0.0F;
  problem.log_length = problem.log_length > 0 ? 1 : 0;
  problem.wants_lse = problem.has_d_lse = false;
  if (problem.pass == Pass::forward) problem.deterministic = false;
  if (problem.pass != Pass::forward) problem.row_invariant = false;
  return problem;
}

std::string tuned_name(std::string_view family, const AttentionProblem& problem) {
  return std::string(family) + ' ' + call_text(tuned_call(problem));
}

PlannedChoice tuned_choice(std::string_view family, const AttentionProblem& problem,
                           const runtime::CudaDevice& device) {
  if (problem.row_invariant && problem.pass == Pass::forward) return {};
  if (problem.expression.given()) return {};  // names do not tell texts apart
  const auto& entries = runtime::tuned_choices(device).table.entries;
  if (entries.empty()) return {};
  const auto found = entries.find(tuned_name(family, problem));
  if (found == entries.end()) return {};
  const std::optional<Choice> choice = parse_choice(found->second.choice);
  return choice.has_value() ? PlannedChoice{*choice, found->second.gain} : PlannedChoice{};
}

}  // namespace strobe::gpu
