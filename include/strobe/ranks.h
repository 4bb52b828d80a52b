// SPDX-License-Identifier: Apache-2.0
// Which rows of a sequence each of several devices has, and which keys they see: for attention of one sequence on many,
// with the offsets of Sequences, merge.h and the caller's own messages. examples/context_parallel is a whole program.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "strobe/attention.h"

namespace strobe {

/// Rows from `first` on, or keys. @experimental
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const RowRange&) const = default;
};

/// How rows are dealt to ranks. @experimental
enum class RowLayout : std::int32_t {
  contiguous,  // one run
  zigzag,      // slices r and 2 ranks - 1 - r of 2 ranks: as much work on each rank with a causal mask
};

/// The runs of rows of `rank`, from 0 to ranks - 1, in ascending order; those that are left over have a count of 0.
/// @experimental
constexpr std::array<RowRange, 2> rows_of_rank(std::int64_t seqlen, std::int64_t rank, std::int64_t ranks,
                                               RowLayout layout) {
  const std::int64_t slices = layout == RowLayout::zigzag ? 2 * ranks : ranks;
  const auto slice = [&](std::int64_t i) -> RowRange {
    const std::int64_t first = seqlen * i / slices;
    return {first, seqlen * (i + 1) / slices - first};
  };
  std::array<RowRange, 2> runs{slice(rank), {}};
  if (layout == RowLayout::contiguous) return runs;
  runs[1] = slice(slices - 1 - rank);
  if (runs[0].first + runs[0].count != runs[1].first) return runs;
  return {RowRange{runs[0].first, runs[0].count + runs[1].count}, {}};  // the last rank's are one
}

/// The keys that some rows of a sequence see, with as many keys as queries: those that a rank must have to compute
/// them. @experimental
constexpr RowRange visible_keys(const RowRange& rows, std::int64_t seqlen, CausalMask causal = CausalMask::none,
                                const Window& window = {}) {
  const std::int64_t behind = rows.first + rows.count;
  std::int64_t first = 0;
  std::int64_t stop = causal == CausalMask::none ? seqlen : behind;
  if (window.left >= 0) first = std::max<std::int64_t>(0, rows.first - window.left);
  if (window.right >= 0) stop = std::min(stop, behind + window.right);
  return rows.count == 0 ? RowRange{} : RowRange{first, stop - first};
}

}  // namespace strobe
