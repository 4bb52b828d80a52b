// SPDX-License-Identifier: Apache-2.0
#include "expression/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace strobe::expression {
namespace {

/// Of what parsed, whitespace is all that may be a character which JSON escapes.
std::string quoted(std::string text) {
  std::ranges::replace_if(text, [](unsigned char c) { return std::isspace(c) != 0; }, ' ');
  return fmt::format("\"{}\"", text);
}

}  // namespace

std::string json_of(const Formula& formula, std::uint32_t gradients, bool bias_fits, bool slopes_fit) {
  std::vector<std::string> fields;
  if (formula.has_score()) fields.push_back(fmt::format("\"score\": {}", quoted(formula.score_text())));
  if (formula.has_mask()) fields.push_back(fmt::format("\"mask\": {}", quoted(formula.mask_text())));
  std::vector<std::string> captures;
  for (const Capture& capture : formula.captures()) {
    captures.push_back(fmt::format(R"({{"name": "{}", "dtype": "{}", "rank": {}}})", capture.name,
                                   strobe::name_of(capture.dtype), capture.rank));
  }
  if (!captures.empty()) fields.push_back(fmt::format("\"captures\": [{}]", fmt::join(captures, ", ")));
  if (gradients != 0) fields.push_back(fmt::format("\"gradients\": {}", gradients));
  if (bias_fits) fields.emplace_back("\"bias_fits\": true");
  if (slopes_fit) fields.emplace_back("\"slopes_fit\": true");
  return fmt::format("{{{}}}", fmt::join(fields, ", "));
}

}  // namespace strobe::expression
