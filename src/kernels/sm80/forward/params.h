// SPDX-License-Identifier: Apache-2.0
// What the host hands to a forward kernel. Plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/scheduler/split.h"
#include "kernels/score/params.h"
#include "kernels/sequence/cache.h"
#include "kernels/sequence/params.h"
#include "kernels/sequence/rows.h"
#include "kernels/sequence/scales.h"

namespace strobe::sm80::forward {

/// Which tile of Q a CTA computes. The multiprocessors take CTAs in the order of their numbers: sections of heads whose
/// keys and values fit in L2 together follow one another, and within one the tiles with the most keys come first.
struct TileOrder {
  int heads;    // of q, divided by packed_heads
  int m_tiles;  // per sequence and head
  int section_heads;
  int full_sections;                  // those of section_heads heads; at most one shorter section follows
  Divisor by_section, by_heads;       // tiles of a full section; heads
  Divisor by_section_heads, by_last;  // heads of a full section, and of the last
};

struct Params {
  Rows q, k, v, o;
  Rows qv;     // rules with query_values
  float* lse;  // null: not wanted
  long long lse_batch_stride, lse_head_stride;
  int head_dim, head_dim_v;  // columns that exist: of rules with query_values those of Q and K count V's, too

  SequenceParams sequences;
  VisibilityParams visibility;
  union {  // no rule has both
    BlockMaskParams blocks;
    TreeParams tree;
  };
  ScoreParams score;
  TileOrder tiles;
  Divisor by_heads_per_kv;  // of tiles.heads, those that read one key head

  MaxLogitParams max_logits;

  SplitParams split;  // split schedules
  float* kept;        // variants that fold: [CTAs, kept_vectors(C), threads of a CTA, 4]
  int tile_count;     // likewise: of all CTAs
  CacheParams cache;
  ScaleParams k_scales, v_scales;  // of K and V in 8 bits, whose rows count pairs of elements
};

}  // namespace strobe::sm80::forward
