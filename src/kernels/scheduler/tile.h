// SPDX-License-Identifier: Apache-2.0
// What a scheduler hands out.
#pragma once

#include "kernels/score/parts.h"

namespace strobe {

/// Split schedules: what of a tile is this CTA's.
struct PartOfTile {
  int first, end;     // of its key blocks, or segments, from the first that it sees on; one where it sees none
  int slot;           // where the part is left; -1: the tile is whole
  TileParts sharers;  // where first is 0
};

struct Tile {
  int m;         // in units of block_m rows
  int sequence;  // batch index
  int head;      // in units of packed_heads
  PartOfTile part;
};

}  // namespace strobe
