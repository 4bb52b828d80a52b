// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/choice.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>
#include <utility>

namespace strobe::gpu {
namespace {

constexpr int kMost = 1 << 30;

using Member = int Choice::*;
constexpr std::pair<std::string_view, Member> kNumbers[] = {{"section_heads", &Choice::section_heads},
                                                            {"part_heads", &Choice::part_heads},
                                                            {"split_ctas", &Choice::split_ctas}};

/// A number from `least` on that fills the text; 0 where it is none.
int number_of(std::string_view text, int least) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= least && value <= kMost ? value : 0;
}

/// Takes what is before the separator, or all, off the text.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view taken = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return taken;
}

bool read_tiles(std::string_view text, Choice& choice) {
  for (int* const number : {&choice.block_m, &choice.block_n, &choice.ctas}) {
    *number = number_of(take(text, 'x'), 1);
    if (*number == 0) return false;
  }
  return text.empty();
}

bool read_field(std::string_view field, Choice& choice) {
  const std::string_view name = take(field, '=');
  if (name == "tiles") return read_tiles(field, choice);
  for (const auto& [known, member] : kNumbers) {
    if (name != known) continue;
    choice.*member = number_of(field, name == "split_ctas" ? Choice::kWhole : 1);
    return choice.*member != 0;
  }
  return false;
}

}  // namespace

std::string text_of(const Choice& choice) {
  std::string text;
  if (choice.has_tiles()) text = fmt::format("tiles={}x{}x{}", choice.block_m, choice.block_n, choice.ctas);
  for (const auto& [name, member] : kNumbers) {
    if (choice.*member != 0) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, choice.*member);
  }
  return text.empty() ? "rule" : text;
}

std::optional<Choice> parse_choice(std::string_view text) {
  Choice choice;
  if (text == "rule") return choice;
  for (std::string_view rest = text; !rest.empty();) {
    if (!read_field(take(rest, ' '), choice)) return std::nullopt;
  }
  if (text_of(choice) != text) return std::nullopt;  // another order, or a field twice
  return choice;
}

std::string explain_choice(const PlannedChoice& planned) {
  if (planned.choice == Choice()) return {};
  const std::string source = planned.gain > 0.0 ? fmt::format("tuned: {:.2f} times as fast as the rule's", planned.gain)
                                                : "asked for, not the rule's";
  return fmt::format("choice        {} ({})\n", text_of(planned.choice), source);
}

}  // namespace strobe::gpu
