// SPDX-License-Identifier: Apache-2.0
// Every row is of one rank, and the keys that it sees are those that visible_keys() says.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "strobe/ranks.h"

namespace strobe::test {
namespace {

TEST(Ranks, ShareAllRowsOut) {
  for (const RowLayout layout : {RowLayout::contiguous, RowLayout::zigzag}) {
    for (const std::int64_t seqlen : {0, 1, 3, 16, 101}) {
      for (std::int64_t ranks = 1; ranks <= 9; ++ranks) {
        std::vector<int> owners(static_cast<std::size_t>(seqlen));
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          for (const RowRange& run : rows_of_rank(seqlen, rank, ranks, layout)) {
            for (std::int64_t row = run.first; row < run.first + run.count; ++row) {
              ++owners[static_cast<std::size_t>(row)];
            }
          }
        }
        EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; })) << seqlen << ", " << ranks;
      }
    }
  }
}

TEST(Ranks, HaveAsMuchCausalWorkInZigzag) {
  for (const std::int64_t ranks : {2, 4, 8}) {
    std::vector<std::int64_t> work;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::int64_t keys = 0;
      for (const RowRange& run : rows_of_rank(16'000, rank, ranks, RowLayout::zigzag)) {
        for (std::int64_t row = run.first; row < run.first + run.count; ++row) keys += row + 1;
      }
      work.push_back(keys);
    }
    EXPECT_EQ(*std::max_element(work.begin(), work.end()), *std::min_element(work.begin(), work.end()));
  }
}

TEST(Ranks, SeeTheKeysOfTheirMask) {
  constexpr std::int64_t kKeys = 40;
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
    for (const Window& window : {Window{}, Window{7, 0}, Window{-1, 3}, Window{5, 9}}) {
      for (const RowRange& rows : {RowRange{0, 5}, RowRange{12, 1}, RowRange{30, 10}}) {
        std::int64_t first = kKeys;
        std::int64_t stop = 0;
        for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
          for (std::int64_t key = 0; key < kKeys; ++key) {
            const bool hidden = (causal != CausalMask::none && key > row) ||
                                (window.left >= 0 && key < row - window.left) ||
                                (window.right >= 0 && key > row + window.right);
            if (hidden) continue;
            first = std::min(first, key);
            stop = std::max(stop, key + 1);
          }
        }
        EXPECT_EQ(visible_keys(rows, kKeys, causal, window), (RowRange{first, stop - first}));
      }
    }
  }
  EXPECT_EQ(visible_keys({4, 0}, kKeys), RowRange{});
}

}  // namespace
}  // namespace strobe::test
