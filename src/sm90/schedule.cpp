// SPDX-License-Identifier: Apache-2.0
#include "sm90/schedule.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "call/arithmetic.h"

namespace strobe::sm90 {
namespace {

// Rounds of tiles in the last section: enough short ones to even out the workers' ends.
constexpr int kLastRounds = 3;

using Worker = std::pair<double, int>;  // when it is free, and its number
using Workers = std::priority_queue<Worker, std::vector<Worker>, std::greater<>>;

}  // namespace

TileList deal(const DealtTiles& tiles) {
  TileList list{};
  list.period_heads = std::min(tiles.heads, TileList::kMaxTiles / tiles.m_tiles);
  list.periods = ceil_div(tiles.heads, list.period_heads);

  Workers free;
  for (int worker = 0; worker < tiles.workers; ++worker) free.emplace(0.0, worker);
  std::vector<int> longest_first(static_cast<std::size_t>(tiles.m_tiles));
  std::iota(longest_first.rbegin(), longest_first.rend(), 0);
  std::ranges::stable_sort(longest_first, std::ranges::greater{}, tiles.cost);
  std::vector<std::vector<unsigned short>> dealt(static_cast<std::size_t>(tiles.workers));
  const int last_heads = std::max(1, kLastRounds * tiles.workers / tiles.m_tiles);
  for (int first = 0; first < list.period_heads;) {
    const int left = list.period_heads - first;
    const int heads = left <= last_heads ? left : std::min(tiles.section_heads, left);
    for (const int m : longest_first) {
      for (int head = first; head < first + heads; ++head) {
        const auto [time, worker] = free.top();
        free.pop();
        dealt[static_cast<std::size_t>(worker)].push_back(static_cast<unsigned short>(head * tiles.m_tiles + m));
        free.emplace(time + tiles.cost(m), worker);
      }
    }
    first += heads;
  }

  int count = 0;
  for (int worker = 0; worker < tiles.workers; ++worker) {
    list.first[worker] = static_cast<unsigned short>(count);
    for (const unsigned short tile : dealt[static_cast<std::size_t>(worker)]) list.tiles[count++] = tile;
  }
  list.first[tiles.workers] = static_cast<unsigned short>(count);
  return list;
}

}  // namespace strobe::sm90
