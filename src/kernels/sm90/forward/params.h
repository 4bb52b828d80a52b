// SPDX-License-Identifier: Apache-2.0
// What the host hands to a forward kernel beside the tensor maps. Plain C++ without std headers, shared by host and
// device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/score/params.h"
#include "kernels/sequence/cache.h"
#include "kernels/sequence/params.h"
#include "kernels/sequence/rows.h"
#include "kernels/sequence/scales.h"
#include "kernels/sequence/stored_cache.h"
#include "kernels/sm90/scheduler/schedule.h"
#include "kernels/sm90/tile/tensor_map.h"

namespace strobe::sm90::forward {

/// 8-bit operands.
struct EightBitParams {
  ScaleParams q, k, v;
  ScaleParams q_shift;            // data null: none
  unsigned long long v_signs[4];  // of V's rotation, a bit for each column
};

/// Variants that have neither a ring of the bias nor a second query take this in the place of its tensor map.
struct NoOtherMap {};

struct Params {
  Rows q, k, v;  // what the tensor maps describe, for rows recomputed one by one
  Rows o;
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
  TileParams tiles;
  Divisor by_heads_per_kv;  // of tiles.heads, those that read one key head

  MaxLogitParams max_logits;

  union {  // no variant has both
    EightBitParams eight_bit;
    FormatParams format;  // rows_in_format
  };
  CacheParams cache;
  BiasBoxParams bias_boxes;
  float*
      kept;  // variants that keep what segments leave in global memory: [CTAs, consumer rows, head_dim_v as compiled]
};

}  // namespace strobe::sm90::forward
