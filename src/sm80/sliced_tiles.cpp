// SPDX-License-Identifier: Apache-2.0
#include "sm80/sliced_tiles.h"

#include <algorithm>
#include <iterator>

#include "call/limits.h"
#include "sm80/supported.h"

namespace strobe::sm80 {
namespace {

constexpr int kCompiledColumnsOfV[] = {256, 384, 512};

/// Slices of 128 columns divide all widths but 576, of 64 all.
constexpr Tiles sliced(int warps, int rows_per_warp, int column_warps, int block_n, int slice_columns, int stages,
                       int ctas_per_sm) {
  return {.warps = warps,
          .rows_per_warp = rows_per_warp,
          .block_n = block_n,
          .stages = stages,
          .ctas_per_sm = ctas_per_sm,
          .column_warps = column_warps,
          .slice_columns = slice_columns};
}

// log: sm80-wide-slices, sm80-wide-slice-columns
constexpr Tiles kManyRows[] = {
    sliced(8, 32, 4, 128, 256, 2, 1), sliced(8, 32, 4, 128, 128, 4, 1), sliced(8, 32, 4, 128, 128, 2, 1),
    sliced(8, 32, 4, 128, 64, 6, 1),  sliced(8, 32, 4, 128, 64, 4, 1),  sliced(8, 32, 4, 64, 256, 4, 1),
    sliced(8, 32, 4, 64, 256, 2, 1),  sliced(8, 32, 4, 64, 128, 5, 1),  sliced(8, 32, 4, 64, 64, 8, 1),
    sliced(8, 16, 2, 64, 128, 5, 1),  sliced(8, 16, 2, 64, 64, 8, 1),   sliced(8, 16, 2, 64, 64, 3, 1),
    sliced(8, 16, 2, 32, 128, 3, 1),  sliced(8, 16, 2, 32, 64, 5, 1),   sliced(8, 16, 2, 64, 64, 2, 1),
    sliced(4, 16, 2, 64, 64, 3, 1)};
constexpr Tiles kThirtyTwoRows[] = {sliced(4, 32, 4, 128, 128, 2, 2), sliced(4, 32, 4, 64, 128, 4, 2),
                                    sliced(4, 32, 4, 64, 64, 4, 2),   sliced(4, 32, 4, 64, 128, 3, 1),
                                    sliced(4, 32, 4, 64, 64, 6, 1),   sliced(4, 16, 2, 64, 64, 3, 1)};
constexpr Tiles kSixteenRows[] = {sliced(4, 16, 4, 64, 128, 5, 2), sliced(4, 16, 4, 64, 128, 3, 2),
                                  sliced(4, 16, 4, 64, 64, 9, 2),  sliced(4, 16, 4, 64, 64, 5, 2),
                                  sliced(4, 16, 4, 64, 64, 3, 1),  sliced(2, 16, 2, 64, 64, 3, 1)};

constexpr Tiles kInvariantMany[] = {sliced(8, 16, 2, 64, 128, 5, 1), sliced(8, 16, 2, 64, 64, 8, 1),
                                    sliced(8, 16, 2, 64, 64, 3, 1), sliced(8, 16, 2, 64, 64, 2, 1),
                                    sliced(4, 16, 2, 64, 64, 3, 1)};
constexpr Tiles kInvariantFew[] = {sliced(4, 16, 2, 64, 64, 3, 2), sliced(4, 16, 2, 64, 64, 3, 1),
                                   sliced(2, 16, 2, 64, 64, 3, 1)};

}  // namespace

void choose_sliced_columns(forward::Config& config, const AttentionProblem& problem) {
  config.head_dim = std::min<int>(compiled_wide_head_dim(problem.head_dim), kMaxHeadDim);
  config.head_dim_v = *std::ranges::lower_bound(kCompiledColumnsOfV, static_cast<int>(problem.head_dim_v));
}

std::span<const Tiles> sliced_tiles_of(std::int64_t rows) {
  if (rows <= 16) return kSixteenRows;
  return rows <= 32 ? std::span<const Tiles>(kThirtyTwoRows) : kManyRows;
}

std::span<const Tiles> invariant_sliced_tiles_of(std::int64_t rows) {
  return rows <= 32 ? std::span<const Tiles>(kInvariantFew) : kInvariantMany;
}

}  // namespace strobe::sm80
