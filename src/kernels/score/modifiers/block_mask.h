// SPDX-License-Identifier: Apache-2.0
// A block mask shows or hides blocks of rule.block_mask queries by as many keys.
//
// Forward and backward go from block to block past those that are hidden (BlockWalk and Steps of each family): scores
// of a block that is computed are all shown. Of a single pair: shows_pair(). The parameters are plain C++ without std
// headers, shared by host and device.
#pragma once

#include "kernels/score/rule.h"

namespace strobe {

/// Block-mask rules: [batch or 1, query heads or 1, blocks of queries, blocks of keys], 0 hides.
struct BlockMaskParams {
  const unsigned char* data;
  long long batch_stride, head_stride, row_stride;

  /// The block of query 0 and key 0 of a query head.
  constexpr const unsigned char* first(int batch, int head) const {
    return data + batch * batch_stride + head * head_stride;
  }
};

/// Where the mask is a text: of a block that it shows whole, of whose scores none is looked at.
inline constexpr unsigned char kShownBlock = 2;

/// Registers of a thread that a forward keeps for it.
inline constexpr int kBlockMaskRegisters = 8;

#ifdef __CUDACC_RTC__

namespace score {

/// Whether a block mask shows a pair of a query and a key.
__device__ __forceinline__ bool shows_pair(const ScoreRule& rule, const BlockMaskParams& params, int batch, int head,
                                           int query, int key) {
  if (rule.block_mask == 0) {
    return true;
  }
  const auto block_of = [&](int row) { return rule.block_mask == 64 ? row / 64 : row / 128; };  // not by a variable
  const long long row = block_of(query) * params.row_stride;
  return __ldg(params.first(batch, head) + row + block_of(key)) != 0;
}

/// Whether a mask that is a text shows the block of a pair whole, as far as is known.
template <ScoreRule R>
__device__ __forceinline__ bool shows_block(const BlockMaskParams& params, int batch, int head, int query, int key) {
  if constexpr (R.block_mask == 0) {
    return false;
  } else {
    const unsigned char* const row = params.first(batch, head) + query / R.block_mask * params.row_stride;
    return __ldg(row + key / R.block_mask) == kShownBlock;
  }
}

template <ScoreRule R>
__device__ __forceinline__ bool shows_pair(const BlockMaskParams& params, int batch, int head, int query, int key) {
  return shows_pair(R, params, batch, head, query, key);
}

}  // namespace score

#endif

}  // namespace strobe
