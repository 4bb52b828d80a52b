// SPDX-License-Identifier: Apache-2.0
#include "suggestion.h"

#include <algorithm>
#include <cstddef>

namespace strobe::program {
namespace {

/// The optimal string alignment distance: the fewest insertions, deletions, substitutions and swaps of neighbours.
std::size_t distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return cost[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return cost.back();
}

/// Whether one is the other and a part before or after it: "scale" and "softmax-scale".
bool differs_by_a_part(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  if (a.size() == b.size() || b.empty()) return false;
  const bool begins = a.starts_with(b) && (a[b.size()] == '-' || a[b.size()] == '_');
  const char before = a[a.size() - b.size() - 1];
  return begins || (a.ends_with(b) && (before == '-' || before == '_'));
}

}  // namespace

std::string nearest_word(std::string_view given, const std::vector<std::string>& known) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(given.size() / 3, 1) + 1;
  for (const std::string& word : known) {
    const std::size_t own = std::min(distance(given, word), differs_by_a_part(given, word) ? 2U : given.size());
    if (own < least) {
      least = own;
      nearest = word;
    }
  }
  return nearest;
}

}  // namespace strobe::program
