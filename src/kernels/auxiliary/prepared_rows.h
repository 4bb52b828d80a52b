// SPDX-License-Identifier: Apache-2.0
// The query rows of one head of a sequence, as the steps before a backward take them.
#pragma once

#include "kernels/auxiliary/prepare_backward_params.h"
#include "kernels/math/constants.h"
#include "kernels/sequence/query_blocks.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe::auxiliary {

/// Rows of one head of a sequence: how many are in use, how many the workspaces have for it and up to the next
/// sequence, and where row 0 of each lies.
struct PreparedRows {
  int used, count;
  const unsigned short* o;
  const unsigned short* d_o;
  const float* lse;
  const float* d_lse;
  long long at;  // in lse_log2 and d_sum
};

template <PrepareBackwardConfig C>
__device__ __forceinline__ PreparedRows prepared_rows(const PrepareBackwardParams& params, int sequence, int head) {
  const BackwardParams& backward = params.backward;
  const SequenceParams& sequences = backward.sequences;
  const sequence::SequenceRows q = sequence::query_rows<ScoreRule{.varlen = C.varlen}>(sequences, sequence);
  const long long batch = C.varlen && sequences.cu_seqlens_q != nullptr ? 0 : sequence;
  const int block =
      C.varlen ? sequence::first_query_block(sequences, sequence, params.block_m) : sequence * backward.m_blocks;
  int blocks = backward.m_blocks;
  if constexpr (C.varlen) {
    blocks = sequence + 1 == sequences.sequences
                 ? backward.query_blocks - block
                 : sequence::first_query_block(sequences, sequence + 1, params.block_m) - block;
  }
  return {.used = q.used,
          .count = blocks * params.block_m,
          .o = params.o.row(batch, q.start, head),
          .d_o = backward.d_o.row(batch, q.start, head),
          .lse = params.lse + batch * params.lse_batch_stride + head * params.lse_head_stride + q.start,
          .d_lse = params.d_lse == nullptr
                       ? nullptr
                       : params.d_lse + batch * params.d_lse_batch_stride + head * params.d_lse_head_stride + q.start,
          .at = (static_cast<long long>(head) * backward.query_blocks + block) * params.block_m};
}

// From here on float32 may keep less of the logarithm of a row's sum of exponentials than P's 16 bits show.
constexpr float kLargeLse = 8192.0F * kLn2;

/// Whether a row's LSE is large, and finite (score/large_rows.h).
__device__ __forceinline__ bool is_large(float lse) { return fabsf(lse) > kLargeLse && fabsf(lse) < -kMinusInfinity; }

}  // namespace strobe::auxiliary
