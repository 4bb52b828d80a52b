// SPDX-License-Identifier: Apache-2.0
#include "call/explain_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "call/text_options.h"
#include "expression/formula.h"
#include "expression/position_mask.h"

namespace strobe {
namespace {

std::string side(std::int64_t keys) { return keys < 0 ? "unbounded" : fmt::format("{}", keys); }

/// The options of `with` that `without` lacks, which say which keys a query sees.
std::vector<std::string> mask_options(const AttentionProblem& with, const AttentionProblem& without) {
  std::vector<std::string> names;
  if (with.causal != without.causal) {
    names.emplace_back(with.causal == CausalMask::top_left ? "causal top-left" : "causal");
  }
  const Window& window = with.window;
  if (window.left != without.window.left || window.right != without.window.right) {
    names.push_back(fmt::format("window ({}, {})", side(window.left), side(window.right)));
  }
  return names;
}

std::vector<std::string> score_options(const AttentionProblem& with, const AttentionProblem& without) {
  std::vector<std::string> names;
  if (with.softcap != without.softcap) names.push_back(fmt::format("softcap {}", with.softcap));
  if (with.modifiers.has_bias != without.modifiers.has_bias) names.emplace_back("bias");
  if (with.modifiers.has_alibi != without.modifiers.has_alibi) names.emplace_back("ALiBi");
  return names;
}

/// "the score is the options softcap 30 and bias".
std::string options_text(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return fmt::format("{} changes nothing", what);
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  return first.empty() ? fmt::format("{} is the option {}", what, names.back())
                       : fmt::format("{} is the options {} and {}", what, fmt::join(first, ", "), names.back());
}

/// What engines do with the texts.
std::vector<std::string> uses(const AttentionProblem& given) {
  const expression::Formula& formula = *given.expression.formula;
  const AttentionProblem planned = with_built_in_options(given);
  const bool all = !planned.expression.given();
  const bool score = formula.has_score() && (all || planned.expression.score_is_option);
  const bool mask = formula.has_mask() && (all || planned.expression.mask_is_option);
  std::vector<std::string> lines;
  if (score) lines.push_back(options_text("the score", score_options(planned, given)));
  if (mask) lines.push_back(options_text("the mask", mask_options(planned, given)));
  if (all) return lines;
  const std::vector<std::string> implied = mask_options(with_implied_options(planned), planned);
  if (!implied.empty()) lines.push_back(options_text("a part of the mask", implied));
  const std::string_view how =
      given.device.type == DeviceType::cpu ? "evaluated by vector instructions" : "compiled for the GPU";
  if (formula.has_score() && !score) lines.push_back(fmt::format("the score is {}", how));
  if (formula.has_mask() && !mask) lines.push_back(fmt::format("the mask is {}", how));
  return lines;
}

/// Whether all sequences have the lengths of the call, and count their positions from 0.
bool has_one_length(const AttentionProblem& problem) {
  return !problem.packed_q && !problem.packed_k && !problem.has_seqused_q && !problem.has_seqused_k &&
         !problem.has_leftpad_k && !problem.has_offsets && problem.page_size == 0;
}

std::string explain_blocks(const AttentionProblem& problem) {
  constexpr std::int64_t kBlock = 128;
  if (!has_one_length(problem)) return {};
  const expression::MaskRange mask =
      expression::position_mask(problem.expression.formula, problem.seqlen_q, problem.seqlen_k);
  if (!mask) return {};
  const std::optional<expression::BlockCounts> counts =
      expression::count_blocks(mask, problem.seqlen_q, problem.seqlen_k, kBlock);
  if (!counts) return {};
  return fmt::format("{0} x {0} blocks of the mask: {1} empty, {2} full, {3} partial\n", kBlock, counts->empty,
                     counts->full, counts->partial);
}

}  // namespace

std::string explain_texts(const AttentionProblem& problem) {
  if (!problem.expression.given()) return {};
  std::string text = fmt::format("{}\n", fmt::join(uses(problem), "\n"));
  text += problem.expression.formula->explain() + explain_blocks(problem);
  std::string lines;
  std::istringstream each(text);
  for (std::string line; std::getline(each, line);) {
    lines += fmt::format("{:<14}{}\n", lines.empty() ? "texts" : "", line);
  }
  return lines;
}

}  // namespace strobe
