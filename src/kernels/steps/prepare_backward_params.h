// SPDX-License-Identifier: Apache-2.0
// What the host hands to the step before a backward, and that step's variants and sizes. Plain C++ without std headers,
// shared by host and device.
#pragma once

#include "kernels/math/element.h"
#include "kernels/math/rows.h"
#include "kernels/score/params.h"

namespace strobe::steps {

struct PrepareBackwardParams {
  Rows o, d_o;
  const float* lse;  // packed: batch strides are 0
  long long lse_batch_stride, lse_head_stride;
  const float* d_lse;  // null: none
  long long d_lse_batch_stride, d_lse_head_stride;

  // [heads, query_blocks, block_m], as score/query_blocks.h places rows. Every element is written.
  float* lse_log2;
  float* d_sum;
  void* zeros;  // null: none
  long long zeros_16_bytes;

  SequenceParams sequences;
  int heads, head_dim_v;
  int block_m, m_blocks;  // m_blocks: of the longest sequence, at least 1
  int query_blocks;       // of one head
};

struct PrepareBackwardConfig {
  Element element = Element::bf16;
  bool varlen = false;
  int threads_per_row = 16;  // a power of two up to 32, at least head_dim_v / 8

  bool operator==(const PrepareBackwardConfig&) const = default;
};

constexpr int kPrepareThreads = 256;
constexpr int kPrepareRowsPerThread = 4;  // so many are on their way at once

constexpr int rows_per_block(const PrepareBackwardConfig& c) {
  return kPrepareThreads / c.threads_per_row * kPrepareRowsPerThread;
}

/// CTAs of one head of one sequence, of which the longest has m_blocks blocks.
constexpr int prepare_groups(const PrepareBackwardConfig& c, int m_blocks, int block_m) {
  return (m_blocks * block_m + rows_per_block(c) - 1) / rows_per_block(c);
}

}  // namespace strobe::steps
