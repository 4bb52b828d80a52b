// SPDX-License-Identifier: Apache-2.0
// Block masks, as a backward looks at them: pair by pair.
#pragma once

#include "kernels/score/backward_params.h"
#include "kernels/score/rule.h"

namespace strobe::score {

/// The mask's block of query 0 and key 0 of one query head.
__device__ __forceinline__ const unsigned char* first_mask_block(const BackwardParams& params, int sequence, int head) {
  return params.blocks.data + sequence * params.blocks.batch_stride + head * params.blocks.head_stride;
}

/// Whether a block mask shows a pair of a query and a key.
__device__ __forceinline__ bool shows_pair(const ScoreRule& rule, const BackwardParams& params, int sequence, int head,
                                           int query, int key) {
  if (rule.block_mask == 0) {
    return true;
  }
  const auto block_of = [&](int row) { return rule.block_mask == 64 ? row / 64 : row / 128; };  // not by a variable
  const long long row = block_of(query) * params.blocks.row_stride;
  return __ldg(first_mask_block(params, sequence, head) + row + block_of(key)) != 0;
}

template <ScoreRule R>
__device__ __forceinline__ bool shows_pair(const BackwardParams& params, int sequence, int head, int query, int key) {
  return shows_pair(R, params, sequence, head, query, key);
}

}  // namespace strobe::score
