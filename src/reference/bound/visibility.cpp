// SPDX-License-Identifier: Apache-2.0
#include "reference/bound/visibility.h"

#include <algorithm>
#include <cstdlib>

namespace strobe::reference {
namespace {

std::int64_t floor_divide(std::int64_t value, std::int64_t by) { return value / by - (value % by < 0 ? 1 : 0); }

// What every mask but that of blocks leaves.
KeyRange interval(std::int64_t center, const SequenceRows& rows, const AttentionOptions& options) {
  const std::int64_t everything = std::abs(center) + rows.seqlen_k;  // no window needs to reach further
  KeyRange keys{0, rows.seqlen_k};
  if (options.causal != CausalMask::none) keys.end = std::min(keys.end, center + 1);
  if (options.window.right >= 0) keys.end = std::min(keys.end, center + std::min(options.window.right, everything) + 1);
  if (options.window.left >= 0) keys.begin = std::max(keys.begin, center - std::min(options.window.left, everything));
  if (options.chunk > 0) {
    const std::int64_t first = floor_divide(center + rows.position_k, options.chunk) * options.chunk - rows.position_k;
    keys.begin = std::max(keys.begin, first);
    keys.end = std::min(keys.end, first + options.chunk);
  }
  return keys;
}

void append(const KeyRange& part, std::vector<KeyRange>& ranges) {
  if (part.size() == 0) return;
  if (!ranges.empty() && ranges.back().end == part.begin) {
    ranges.back().end = part.end;
  } else {
    ranges.push_back(part);
  }
}

std::vector<KeyRange> cut_by_tree(std::int64_t query, const SequenceRows& rows, const std::vector<KeyRange>& ranges,
                                  const HeadModifiers& modifiers) {
  const std::int64_t first = rows.seqlen_k - rows.seqlen_q;
  std::vector<KeyRange> visible;
  for (const KeyRange& range : ranges) {
    append({range.begin, std::min(range.end, first)}, visible);
    for (std::int64_t key = std::max(range.begin, first); key < range.end; ++key) {
      if (modifiers.shows_node(query, key - first)) append({key, key + 1}, visible);
    }
  }
  return visible;
}

std::vector<KeyRange> cut_by_text(std::int64_t query, const std::vector<KeyRange>& ranges, const HeadText& text) {
  if (!text.has_mask()) return ranges;
  std::vector<KeyRange> visible;
  for (const KeyRange& range : ranges) {
    for (std::int64_t key = range.begin; key < range.end; ++key) {
      if (text.shows(query, key)) append({key, key + 1}, visible);
    }
  }
  return visible;
}

std::vector<KeyRange> cut_by_blocks(std::int64_t query, const KeyRange& keys, const HeadModifiers& modifiers) {
  std::vector<KeyRange> visible;
  const std::int64_t size = modifiers.block_size();
  for (std::int64_t block = keys.begin / size; block * size < keys.end; ++block) {
    if (!modifiers.shows_block(query / size, block)) continue;
    append({std::max(keys.begin, block * size), std::min(keys.end, (block + 1) * size)}, visible);
  }
  return visible;
}

}  // namespace

std::int64_t center_of(std::int64_t query, const SequenceRows& rows, const AttentionOptions& options) {
  if (rows.is_part) return query + rows.position_q - rows.position_k;
  return query + (options.causal == CausalMask::top_left ? 0 : rows.seqlen_k - rows.seqlen_q);
}

std::vector<KeyRange> visible_keys(std::int64_t query, const SequenceRows& rows, const AttentionOptions& options,
                                   const HeadModifiers& modifiers) {
  const KeyRange keys = interval(center_of(query, rows, options), rows, options);
  if (keys.size() == 0) return {};
  std::vector<KeyRange> visible{keys};
  if (modifiers.has_blocks()) visible = cut_by_blocks(query, keys, modifiers);
  if (modifiers.has_tree()) visible = cut_by_tree(query, rows, visible, modifiers);
  return cut_by_text(query, visible, modifiers.text());
}

}  // namespace strobe::reference
