// SPDX-License-Identifier: Apache-2.0
// Before a pass whose mask is a text: which blocks of queries and keys it hides, which it shows whole. By intervals: a
// warp evaluates the mask over one block of queries and one of keys, and looks at what captures hold there. The result
// is a block mask, joined with the one that was given.
#pragma once

#include "kernels/auxiliary/text_blocks_params.h"
#include "kernels/expression/element.h"
#include "kernels/ptx/grid.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe::auxiliary {

/// Block `number` of `size` rows, of those that exist; none: low > high.
__device__ __forceinline__ expression::Range rows_of_block(int number, int size, int rows) {
  const int first = number * size;
  return {first, min(first + size, rows) - 1};
}

__device__ __forceinline__ expression::Range moved(const expression::Range& range, int by) {
  return {range.low + by, range.high + by};
}

template <TextBlocksConfig C, typename Params>
__device__ __forceinline__ unsigned char state_of(const Params& params, int batch, int head, int q_block, int k_block) {
  if (params.given.data != nullptr) {
    const unsigned char* const row = params.given.first(batch, head) + q_block * params.given.row_stride;
    if (row[k_block] == 0) {
      return kHidden;
    }
  }
  const sequence::Sequence rows = sequence::sequence_of<C.rule>(params, batch);
  const sequence::FirstPositions first = sequence::first_positions<C.rule>(params, batch);
  const expression::Range q = rows_of_block(q_block, C.rule.block_mask, rows.q.used);
  const expression::Range k = rows_of_block(k_block, C.rule.block_mask, rows.k.used);
  if (q.low > q.high || k.low > k.high) {
    return kHidden;
  }
  const expression::TileRanges tile{.q = moved(q, first.q),
                                    .k = moved(k, first.k),
                                    .head = expression::just(head),
                                    .head_kv = expression::just(head / params.heads_per_kv),
                                    .batch = expression::just(batch),
                                    .q_len = expression::just(rows.q.used),
                                    .k_len = expression::just(rows.k.used)};
  const expression::Range shown = visibility(params.captures, tile);
  return shown.low == 1 ? kShown : shown.high == 0 ? kHidden : kPartlyShown;
}

/// Grid: a warp for each block.
template <TextBlocksConfig C>
__global__ void __launch_bounds__(kTextBlocksThreads)
    find_text_blocks(const __grid_constant__ TextBlocksParams params) {
  const long long number = static_cast<long long>(blockIdx.x) * (kTextBlocksThreads / 32) + threadIdx.x / 32;
  if (number >= params.count) {
    return;
  }
  const long long row = number / params.k_blocks;
  const int k_block = static_cast<int>(number - row * params.k_blocks);
  const long long plane = row / params.q_blocks;
  const int q_block = static_cast<int>(row - plane * params.q_blocks);
  const int batch = static_cast<int>(plane / params.heads);
  const int head = static_cast<int>(plane - static_cast<long long>(batch) * params.heads);
  const unsigned char state = state_of<C>(params, batch, head, q_block, k_block);
  if (threadIdx.x % 32 == 0) {
    params.blocks[number] = state;
  }
}

}  // namespace strobe::auxiliary
