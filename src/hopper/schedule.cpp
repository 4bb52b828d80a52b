#include "hopper/schedule.h"

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

namespace strobe::hopper {
namespace {

// Rounds of tiles in the last section: enough short ones to even out the lanes' ends.
constexpr int kLastRounds = 3;

using Lane = std::pair<double, int>;  // when it is free, and its number
using Lanes = std::priority_queue<Lane, std::vector<Lane>, std::greater<>>;

}  // namespace

TileList deal(const DealtTiles& tiles) {
  TileList list{};
  list.period_heads = std::min(tiles.heads, TileList::kMaxTiles / tiles.m_tiles);
  list.periods = (tiles.heads + list.period_heads - 1) / list.period_heads;

  Lanes free;
  for (int lane = 0; lane < tiles.lanes; ++lane) free.emplace(0.0, lane);
  std::vector<std::vector<unsigned short>> dealt(static_cast<std::size_t>(tiles.lanes));
  const int last_heads = std::max(1, kLastRounds * tiles.lanes / tiles.m_tiles);
  for (int first = 0; first < list.period_heads;) {
    const int left = list.period_heads - first;
    const int heads = left <= last_heads ? left : std::min(tiles.section_heads, left);
    for (int m = tiles.m_tiles - 1; m >= 0; --m) {
      for (int head = first; head < first + heads; ++head) {
        const auto [time, lane] = free.top();
        free.pop();
        dealt[static_cast<std::size_t>(lane)].push_back(static_cast<unsigned short>(head * tiles.m_tiles + m));
        free.emplace(time + tiles.cost(m), lane);
      }
    }
    first += heads;
  }

  int count = 0;
  for (int lane = 0; lane < tiles.lanes; ++lane) {
    list.first[lane] = static_cast<unsigned short>(count);
    for (const unsigned short tile : dealt[static_cast<std::size_t>(lane)]) list.tiles[count++] = tile;
  }
  list.first[tiles.lanes] = static_cast<unsigned short>(count);
  return list;
}

}  // namespace strobe::hopper
