// SPDX-License-Identifier: Apache-2.0
// A block mask shows or hides blocks of rule.block_mask queries by as many keys.
//
// Forward and backward go from block to block past those that are hidden (BlockWalk and Steps of each family): scores
// of a block that is computed are all shown, but where a text says more of it, or bits do (block_bits.h). Of a single
// pair: shows_pair(). The parameters are plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/score/rule.h"

namespace strobe {

/// Block-mask rules: [batch or 1, query heads or 1, blocks of queries, blocks of keys], 0 hides.
struct BlockMaskParams {
  const unsigned char* data;
  long long batch_stride, head_stride, row_stride;
  const unsigned*
      bits;  // rules with block_bits, whose blocks lie densely: of each block words as block_bits.h has them

  /// The block of query 0 and key 0 of a query head.
  constexpr const unsigned char* first(int batch, int head) const {
    return data + batch * batch_stride + head * head_stride;
  }
};

/// Where the mask is a text: of a block that it shows whole, of whose scores none is looked at.
inline constexpr unsigned char kShownBlock = 2;

// Rules with block_bits: a row of a block has four words, one for each thread of four that hold a row of a fragment
// (score/fragment.h); of every eight columns a word has the thread's two. Rows are queries, or keys.
inline constexpr int kBlockWordsOfRow = 4;

constexpr long long block_words(int block_size) { return static_cast<long long>(block_size) * kBlockWordsOfRow; }

/// Registers of a thread that a forward keeps for it.
inline constexpr int kBlockMaskRegisters = 8;
inline constexpr int kBlockBitsRegisters = 32;  // as compiling shows of loops that have few left

#ifdef __CUDACC_RTC__

namespace score {

/// The block of a pair.
__device__ __forceinline__ const unsigned char* block_of(int block_mask, const BlockMaskParams& params, int batch,
                                                         int head, int query, int key) {
  const auto number = [&](int row) { return block_mask == 64 ? row / 64 : row / 128; };  // not by a variable
  return params.first(batch, head) + number(query) * params.row_stride + number(key);
}

/// Whether a block mask shows some pairs of the block of a pair.
template <ScoreRule R>
__device__ __forceinline__ bool sees_block(const BlockMaskParams& params, int batch, int head, int query, int key) {
  if constexpr (R.block_mask == 0) {
    return true;
  } else {
    return __ldg(block_of(R.block_mask, params, batch, head, query, key)) != 0;
  }
}

/// Whether a mask that is a text shows the block of a pair whole, as far as is known.
template <ScoreRule R>
__device__ __forceinline__ bool shows_block(const BlockMaskParams& params, int batch, int head, int query, int key) {
  if constexpr (R.block_mask == 0) {
    return false;
  } else {
    return __ldg(block_of(R.block_mask, params, batch, head, query, key)) == kShownBlock;
  }
}

}  // namespace score

#endif

}  // namespace strobe
