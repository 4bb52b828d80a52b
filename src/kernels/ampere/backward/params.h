// SPDX-License-Identifier: Apache-2.0
// What the host hands to the backward's kernels: the same values to each of them. Plain C++ without std headers, shared
// by host and device.
#pragma once

#include "kernels/math/rows.h"
#include "kernels/score/params.h"
#include "kernels/score/query_blocks.h"

namespace strobe::ampere::backward {

/// Workspaces that hold something for each query row are [heads, query_blocks] blocks of block_m rows, as
/// score/query_blocks.h places them.
struct Params {
  Rows q, k, v, d_o;
  Rows dq, dk, dv;
  const float* lse_log2;  // LSE times log2(e); +inf where a row sees no key or does not exist
  const float* d_sum;     // rowsum(dO O), less the gradient of LSE; 0 where LSE above is +inf
  float* dq_sum;          // dQ / scale in float32, each block in the order of the accumulators' registers
  unsigned* turns;  // of each block the number of the block of keys that added to it last, plus 1; null: any order

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

/// The gradient of a bias: [batch or 1, query heads or 1, seqlen_q, seqlen_k].
struct BiasGradientParams {
  float* data;
  long long batch_stride, head_stride, row_stride;  // elements
  int per_batch, per_head;                          // 0: all share it
  int heads;                                        // query heads or 1
};

/// Sequences, and one more where q or k is packed: rows behind the last sequence.
constexpr int batch_of(int sequences, bool packed_q, bool packed_k) {
  return sequences + (packed_q || packed_k ? 1 : 0);
}

}  // namespace strobe::ampere::backward
