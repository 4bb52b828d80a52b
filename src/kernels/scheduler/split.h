// SPDX-License-Identifier: Apache-2.0
// Split schedules: what the host hands over, and what each CTA makes of it in shared memory. Plain C++ without std
// headers, shared by host and device.
#pragma once

#include "kernels/scheduler/tiling.h"
#include "kernels/score/parts.h"
#include "kernels/sequence/params.h"

namespace strobe {

/// Where CTAs leave their parts of tiles, in the workspace. CTA w has slot 2 w for the tile that it goes on with and
/// slot 2 w + 1 for one that it begins and does not end. Segments have a slot each, in the order of tiles and keys.
/// kernels/auxiliary/combine.h reads them.
struct SplitParams {
  TileParts* tiles;            // [sequences, heads, m_tiles]
  PartStatistics* statistics;  // [slots, slot_rows]
  float* sums;                 // [slots, slot_rows, head_dim_v as compiled]
  int slot_rows;
};

struct SplitWork {
  SplitParams params;
  VisibilityParams visibility;
  int blocks_of_head;  // key blocks of all tiles of a head, where sequences are of one length
  // Else: where CTAs have whole parts of tiles, how many each has and the most blocks of a part; 0: even shares of all
  // blocks.
  int parts_of_cta, most_blocks;
  int first_block[kMaxTableSequences + 1];  // of one head, of all sequences before each; at last: of all. Or parts
};

}  // namespace strobe
