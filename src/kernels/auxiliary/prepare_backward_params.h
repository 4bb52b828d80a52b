// SPDX-License-Identifier: Apache-2.0
// What the host hands to the steps before a backward, and these steps' variants and sizes. Plain C++ without std
// headers, shared by host and device.
#pragma once

#include "kernels/math/element.h"
#include "kernels/score/backward_params.h"
#include "kernels/score/rule.h"
#include "kernels/sequence/rows.h"

namespace strobe::auxiliary {

struct PrepareBackwardParams {
  Rows o{};
  const float* lse = nullptr;  // packed: batch strides are 0
  long long lse_batch_stride = 0, lse_head_stride = 0;
  const float* d_lse = nullptr;  // null: none
  long long d_lse_batch_stride = 0, d_lse_head_stride = 0;

  // [heads, query_blocks, block_m], as sequence/query_blocks.h places rows. Every element is written.
  float* lse_log2 = nullptr;
  float* d_sum = nullptr;
  float* row_max = nullptr;
  unsigned* large_rows = nullptr;  // one for each CTA of find_large_rows
  // The same for the tensor cores (kernels/math/hi_lo.h); null: not wanted.
  void* lse_hi_lo = nullptr;  // (lse_shift - LSE) * lse_factor, both in powers of two
  void* d_hi_lo = nullptr;    // -D
  float lse_shift = 0.0F, lse_factor = 0.0F;
  void* zeros = nullptr;  // null: none
  long long zeros_16_bytes = 0;

  int block_m = 0;
  BackwardParams backward{};
  ScoreRule rule;  // of the backward's kernels, and with its sink
  OffsetParams offsets{};
};

struct PrepareBackwardConfig {
  Element element = Element::bf16;
  bool varlen = false;
  bool offsets = false;      // of the rule
  int threads_per_row = 16;  // a power of two up to 32
  bool two_chunks = false;   // a thread has two of a row's chunks of 16 bytes, else one
  bool normalized = true;    // else O and LSE are not read: D is 0, and LSE where a row exists

  bool operator==(const PrepareBackwardConfig&) const = default;
};

// Of find_large_rows.
constexpr int kLargeRowsThreads = kLargeRowsGroup;

/// CTAs of one head of one sequence.
constexpr int large_row_groups(int m_blocks, int block_m) {
  return (m_blocks * block_m + kLargeRowsGroup - 1) / kLargeRowsGroup;
}

constexpr int kPrepareThreads = 256;
constexpr int kPrepareRowsPerThread = 4;  // so many are on their way at once

constexpr int rows_per_block(const PrepareBackwardConfig& c) {
  return kPrepareThreads / c.threads_per_row * kPrepareRowsPerThread;
}

/// CTAs of one head of one sequence, of which the longest has m_blocks blocks.
constexpr int prepare_groups(const PrepareBackwardConfig& c, int m_blocks, int block_m) {
  return (m_blocks * block_m + rows_per_block(c) - 1) / rows_per_block(c);
}

}  // namespace strobe::auxiliary
