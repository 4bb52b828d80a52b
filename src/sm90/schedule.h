// SPDX-License-Identifier: Apache-2.0
// Which CTA computes which tile, where tiles differ in length and the host knows how.
#pragma once

#include <functional>

#include "kernels/sm90/scheduler/schedule.h"

namespace strobe::sm90 {

struct DealtTiles {
  int m_tiles = 0;        // of one head, numbered from the first query row; at most TileList::kMaxTiles
  int heads = 0;          // over the whole batch
  int section_heads = 1;  // heads whose keys and values fit in L2 together
  int workers = 0;        // CTAs; at most TileList::kMaxWorkers
  std::function<double(int m)> cost;
};

/// Deals tiles out as a dynamic scheduler would if the costs were times: the worker that is free first takes the next
/// tile. Sections follow one another so that concurrent tiles share keys and values in L2; within one, the longest
/// tiles of all heads come first. The last section is a few rounds long, so that short tiles fill the gaps at the end.
TileList deal(const DealtTiles& tiles);

}  // namespace strobe::sm90
