// SPDX-License-Identifier: Apache-2.0
// What a tune may choose of a plan in the place of the planner's rules. Every value is safe: one that does not fit a
// call is the nearest that does, or the rule's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "strobe/export.h"

namespace strobe::gpu {

/// 0: as the rule says.
struct Choice {
  static constexpr int kWhole = -1;  // of split_ctas: a tile's keys are one CTA's

  // Of the planner's tiles, those of so many rows and keys, so many CTAs on a multiprocessor: all three or none.
  int block_m = 0;
  int block_n = 0;
  int ctas = 0;
  int section_heads = 0;  // key heads in flight at once
  int part_heads = 0;     // backward: query heads of an item
  int split_ctas = 0;     // few queries: CTAs that share the keys of all tiles

  bool operator==(const Choice&) const = default;

  bool has_tiles() const { return block_m > 0; }

  /// Whether it asks for these tiles.
  bool wants(int m, int n, int ctas_per_sm) const { return block_m == m && block_n == n && ctas == ctas_per_sm; }
};

/// A choice of this call, and where it comes from.
struct PlannedChoice {
  Choice choice;
  double gain = 0.0;  // how many times as fast as the rule's it was; 0: it was not measured
};

/// "tiles=192x80x1 section_heads=8"; "rule" where all is as the rule says.
STROBE_API std::string text_of(const Choice& choice);

/// The choice of such a text, and of no other.
STROBE_API std::optional<Choice> parse_choice(std::string_view text);

/// A line for the plan's text; empty where all is as the rule says.
std::string explain_choice(const PlannedChoice& planned);

}  // namespace strobe::gpu
