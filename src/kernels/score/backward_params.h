// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernels of a backward, whatever their loops. Plain C++ without std headers, shared by host
// and device.
#pragma once

#include "kernels/score/params.h"
#include "kernels/sequence/params.h"
#include "kernels/sequence/rows.h"

namespace strobe {

inline constexpr int kLargeRowsGroup = 256;

/// The same values for each kernel of a call. Workspaces that hold something for each query row are
/// [heads, query_blocks] blocks of block_m rows, as query_blocks.h places them.
struct BackwardParams {
  Rows q, k, v, d_o;
  Rows dq, dk, dv;
  const float* lse_log2;  // LSE times log2(e); +inf where a row sees no key or does not exist
  const float* row_max;   // 0, or of a row of a large LSE its largest score, which LSE above is then relative to
  // Of row_groups groups of kLargeRowsGroup rows of each query head of each sequence: not 0 where one has a row_max.
  const unsigned* large_rows;
  int row_groups;
  const float* d_sum;  // rowsum(dO O), less the gradient of LSE; 0 where LSE above is +inf
  float* dq_sum;       // dQ / scale in float32, each block in the order of the accumulators' registers; may be null
  unsigned* dq_semaphores;  // how far each block's sums are, where they are added to in order; null: any order

  SequenceParams sequences;
  VisibilityParams visibility;
  BlockMaskParams blocks;
  ScoreParams score;
  float scale;  // dK and dQ are multiplied by it at the end; under dropout divided by the probability of being kept

  int total_k;               // rows of a packed k
  int head_dim, head_dim_v;  // columns that exist
  int heads, heads_kv;
  int heads_per_kv;
  int m_blocks, n_blocks;  // of the longest sequence, at least 1
  int query_blocks;        // of one head
  int section_heads;       // key heads that are in flight at once, so that what they read and add to stays in L2
};

}  // namespace strobe
