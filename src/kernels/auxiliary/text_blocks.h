// SPDX-License-Identifier: Apache-2.0
// Before a pass whose mask is a text: which blocks of queries and keys it hides, which it shows whole. By intervals: a
// warp evaluates the mask over one block of queries and one of keys, and looks at what captures hold there. The result
// is a block mask, joined with the one that was given. Where bits are wanted, of blocks of which neither is known the
// CTA then evaluates the mask of each pair.
#pragma once

#include "kernels/auxiliary/text_blocks_params.h"
#include "kernels/expression/element.h"
#include "kernels/ptx/grid.h"
#include "kernels/score/modifiers/text.h"
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

/// Words of shared memory in which a warp keeps values of the mask: an even number, not 0.
constexpr int text_words_of(const TextBlocksConfig& c) {
  const TextRule& text = c.rule.text;
  const bool of_keys = c.rule.block_bits == BlockBits::key_bits;
  const int words = text_words(text, of_keys ? text.query_values : text.key_values,
                               of_keys ? text.key_values : text.query_values, c.rule.block_mask, 1);
  return words / 2 * 2 + 2;
}

/// A block of one sequence and head.
struct TextBlock {
  int batch, head;
  int q_block, k_block;
};

__device__ __forceinline__ TextBlock block_at(const TextBlocksParams& params, long long number) {
  const long long row = number / params.k_blocks;
  const long long plane = row / params.q_blocks;
  const long long batch = plane / params.heads;
  return {.batch = static_cast<int>(batch),
          .head = static_cast<int>(plane - batch * params.heads),
          .q_block = static_cast<int>(row - plane * params.q_blocks),
          .k_block = static_cast<int>(number - row * params.k_blocks)};
}

template <TextBlocksConfig C, typename Params>
__device__ __forceinline__ unsigned char state_of(const Params& params, const TextBlock& block) {
  if (params.given.data != nullptr) {
    const unsigned char* const row =
        params.given.first(block.batch, block.head) + block.q_block * params.given.row_stride;
    if (row[block.k_block] == 0) {
      return kHidden;
    }
  }
  const sequence::Sequence rows = sequence::sequence_of<C.rule>(params, block.batch);
  const sequence::FirstPositions first = sequence::first_positions<C.rule>(params, block.batch);
  const expression::Range q = rows_of_block(block.q_block, C.rule.block_mask, rows.q.used);
  const expression::Range k = rows_of_block(block.k_block, C.rule.block_mask, rows.k.used);
  if (q.low > q.high || k.low > k.high) {
    return kHidden;
  }
  const expression::TileRanges tile{.q = moved(q, first.q),
                                    .k = moved(k, first.k),
                                    .head = expression::just(block.head),
                                    .head_kv = expression::just(block.head / params.heads_per_kv),
                                    .batch = expression::just(block.batch),
                                    .q_len = expression::just(rows.q.used),
                                    .k_len = expression::just(rows.k.used)};
  const expression::Range shown = visibility(params.captures, tile);
  return shown.low == 1 ? kShown : shown.high == 0 ? kHidden : kPartlyShown;
}

/// The bits of a block, by the whole CTA: each warp those of sixteen rows, in the order of a fragment's scores.
template <TextBlocksConfig C, typename Params>
__device__ __forceinline__ void write_bits(const Params& params, const TextBlock& block, unsigned* bits) {
  constexpr int kSize = C.rule.block_mask;
  constexpr bool kRowsAreKeys = C.rule.block_bits == BlockBits::key_bits;
  constexpr int kWarps = kSize / score::kRowsPerFragment;
  __shared__ __align__(8) unsigned kept[kWarps][text_words_of(C)];
  const int warp = threadIdx.x / 32;
  if (warp >= kWarps) {
    return;
  }
  const sequence::Sequence rows = sequence::sequence_of<C.rule>(params, block.batch);
  const sequence::FirstPositions start = sequence::first_positions<C.rule>(params, block.batch);
  const int first_row = warp * score::kRowsPerFragment;
  const expression::Position first{.q = start.q + block.q_block * kSize + (kRowsAreKeys ? 0 : first_row),
                                   .k = start.k + block.k_block * kSize + (kRowsAreKeys ? first_row : 0),
                                   .head = block.head,
                                   .head_kv = block.head / params.heads_per_kv,
                                   .batch = block.batch,
                                   .q_len = rows.q.used,
                                   .k_len = rows.k.used};
  score::TextFragment<C.rule, kSize, kRowsAreKeys> fragment(kept[warp]);
  fragment.find_rows(params.captures, first);
  fragment.find_columns(params.captures, first);
  const score::TextWords<kSize / 2> shown([&](int r, int own) {
    const int row = score::fragment_row(r);
    const int column = score::fragment_column() + own;
    expression::Position pair = first;
    pair.q += kRowsAreKeys ? column : row;
    pair.k += kRowsAreKeys ? row : column;
    pair.distance = static_cast<float>(pair.k - pair.q);
    return score::text_shows<C.rule>(params.captures, pair, fragment.at(r, own));
  });
#pragma unroll
  for (int r = 0; r < score::kRowsPerThread; ++r) {
    const int row = first_row + score::fragment_row(r);
    bits[row * kBlockWordsOfRow + threadIdx.x % kBlockWordsOfRow] = shown.word(r);
  }
}

/// Grid: a CTA for each blocks_of_cta blocks.
template <TextBlocksConfig C>
__global__ void __launch_bounds__(kTextBlocksThreads)
    find_text_blocks(const __grid_constant__ TextBlocksParams params) {
  __shared__ unsigned char states[kMostTextBlocksOfCta];
  const long long first = static_cast<long long>(blockIdx.x) * params.blocks_of_cta;
  const int blocks = static_cast<int>(min(params.count - first, static_cast<long long>(params.blocks_of_cta)));
  const int warp = threadIdx.x / 32;
  if (params.tiles_taken != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *params.tiles_taken = 0;
  }
  if (warp < blocks) {
    const unsigned char state = state_of<C>(params, block_at(params, first + warp));
    if (threadIdx.x % 32 == 0) {
      params.blocks[first + warp] = state;
      states[warp] = state;
    }
  }
  if constexpr (has_block_bits(C.rule)) {
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      if (states[i] == kPartlyShown) {
        write_bits<C>(params, block_at(params, first + i), params.bits + (first + i) * block_words(C.rule.block_mask));
      }
    }
  }
}

}  // namespace strobe::auxiliary
