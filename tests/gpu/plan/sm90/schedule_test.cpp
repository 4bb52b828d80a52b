// SPDX-License-Identifier: Apache-2.0
#include "sm90/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

namespace strobe::sm90 {
namespace {

/// Causal tiles as the forward has them: cost in key blocks.
DealtTiles causal(int m_tiles, int heads, int section_heads, int workers) {
  return {.m_tiles = m_tiles, .heads = heads, .section_heads = section_heads, .workers = workers, .cost = [](int m) {
            return m + 1 + 1.5;
          }};
}

/// Every (head, m) that a CTA computes, as the kernel walks over the list.
std::vector<std::pair<int, int>> walk(const TileList& list, const DealtTiles& tiles, int worker) {
  std::vector<std::pair<int, int>> walked;
  for (int period = 0; period < list.periods; ++period) {
    for (int at = list.first[worker]; at < list.first[worker + 1]; ++at) {
      const int head = period * list.period_heads + list.tiles[at] / tiles.m_tiles;
      if (head < tiles.heads) walked.emplace_back(head, list.tiles[at] % tiles.m_tiles);
    }
  }
  return walked;
}

class Sm90Schedules : public testing::TestWithParam<DealtTiles> {};

TEST_P(Sm90Schedules, DealsEveryTileOnce) {
  const DealtTiles& tiles = GetParam();
  const TileList list = deal(tiles);
  std::set<std::pair<int, int>> seen;
  int count = 0;
  for (int worker = 0; worker < tiles.workers; ++worker) {
    for (const auto& tile : walk(list, tiles, worker)) {
      seen.insert(tile);
      ++count;
    }
  }
  EXPECT_EQ(count, tiles.heads * tiles.m_tiles);
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(count));
}

TEST_P(Sm90Schedules, EndsTogether) {
  const DealtTiles& tiles = GetParam();
  const TileList list = deal(tiles);
  std::vector<double> times;
  for (int worker = 0; worker < tiles.workers; ++worker) {
    double time = 0;
    for (const auto& [head, m] : walk(list, tiles, worker)) time += tiles.cost(m);
    times.push_back(time);
  }
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  // No schedule ends before the longest tile, nor all CTAs closer than the last tile dealt to each period.
  const double longest = tiles.cost(tiles.m_tiles - 1);
  EXPECT_LE(*std::max_element(times.begin(), times.end()), std::max(1.05 * mean, mean + longest * list.periods));
}

TEST(Sm90Schedule, DealsTheLongestFirstWhereverTheyLie) {
  DealtTiles tiles = causal(32, 8, 8, 16);
  tiles.cost = [](int m) { return m % 16 + 2.5; };  // two chunks
  const TileList list = deal(tiles);
  for (int worker = 0; worker < tiles.workers; ++worker) {
    const auto walked = walk(list, tiles, worker);
    EXPECT_TRUE(std::ranges::is_sorted(walked, std::greater{}, [](const auto& tile) { return tile.second % 16; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Sm90Schedules,
                         testing::Values(causal(4, 512, 64, 132), causal(128, 16, 2, 132), causal(1, 1, 1, 1),
                                         causal(7, 3, 1, 21), causal(64, 1000, 8, 132), causal(4096, 5, 1, 132),
                                         causal(3, 4097, 4097, 66)));

}  // namespace
}  // namespace strobe::sm90
