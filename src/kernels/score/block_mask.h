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
template <ScoreRule R>
__device__ __forceinline__ bool shows_pair(const BackwardParams& params, int sequence, int head, int query, int key) {
  if constexpr (R.block_mask != 0) {
    const long long row = query / R.block_mask * params.blocks.row_stride;
    return __ldg(first_mask_block(params, sequence, head) + row + key / R.block_mask) != 0;
  } else {
    return true;
  }
}

}  // namespace strobe::score
