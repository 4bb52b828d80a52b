// Where each piece of an AMX task's scratch memory lies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call/arithmetic.h"
#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"
#include "strobe/float16.h"

namespace strobe::cpu::amx {

/// A matrix tile holds 16 rows of 64 bytes: 16 x 32 bfloat16 of a left operand, 32 x 16 of a right one (in pairs of
/// rows), 16 x 16 float32 of a sum.
inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileDepth = 32;
inline constexpr std::int64_t kTileElements = kTileRows * kTileDepth;  // bfloat16
/// Products go through registers as 2 x 2 tiles of sums, so rows, columns and keys come in blocks of 32.
inline constexpr std::int64_t kBlock = 2 * kTileRows;

/// Byte offsets of one worker's forward scratch; names as in forward-inl.h. Tiles are multiples of kBlock.
struct ForwardScratch {
  std::size_t keys, values, queries, output, scores, probabilities, row_max, row_sum, rescale, visible_begin,
      visible_end, bytes;

  ForwardScratch(std::int64_t head_dim, std::int64_t head_dim_v, Tiles tiles) {
    const std::int64_t d = round_up(head_dim, kBlock);
    const std::int64_t dv = round_up(head_dim_v, kBlock);
    ScratchLayout layout;
    keys = layout.take<bfloat16>(tiles.block_n * d);
    values = layout.take<bfloat16>(tiles.block_n * dv);
    queries = layout.take<bfloat16>(tiles.block_m * d);
    output = layout.take<float>(tiles.block_m * dv);
    scores = layout.take<float>(2 * tiles.block_n * kBlock);
    probabilities = layout.take<bfloat16>(2 * tiles.block_n * kBlock);
    row_max = layout.take<float>(tiles.block_m);
    row_sum = layout.take<float>(tiles.block_m);
    rescale = layout.take<float>(tiles.block_m);
    visible_begin = layout.take<std::int64_t>(tiles.block_m);
    visible_end = layout.take<std::int64_t>(tiles.block_m);
    bytes = layout.bytes();
  }
};

/// Byte offsets of one worker's backward scratch; names as in backward-inl.h.
struct BackwardScratch {
  std::size_t keys, values, keys_transposed, dk, dv, queries, d_o, queries_transposed, d_o_transposed, scores,
      d_probabilities, probability_rows, d_score_rows, d_score_pairs, lse, delta, visible_begin, visible_end, row,
      bytes;

  BackwardScratch(std::int64_t head_dim, std::int64_t head_dim_v, Tiles tiles) {
    const std::int64_t d = round_up(head_dim, kBlock);
    const std::int64_t columns = round_up(head_dim_v, kBlock);
    const std::int64_t m = tiles.block_m;
    const std::int64_t n = tiles.block_n;
    ScratchLayout layout;
    keys = layout.take<bfloat16>(n * d);
    values = layout.take<bfloat16>(n * columns);
    keys_transposed = layout.take<bfloat16>(n * d);
    dk = layout.take<float>(n * d);
    dv = layout.take<float>(n * columns);
    queries = layout.take<bfloat16>(m * d);
    d_o = layout.take<bfloat16>(m * columns);
    queries_transposed = layout.take<bfloat16>(m * d);
    d_o_transposed = layout.take<bfloat16>(m * columns);
    scores = layout.take<float>(2 * kBlock * kBlock);
    d_probabilities = layout.take<float>(2 * kBlock * kBlock);
    probability_rows = layout.take<bfloat16>(m * n);
    d_score_rows = layout.take<bfloat16>(m * n);
    d_score_pairs = layout.take<bfloat16>(m * n);
    lse = layout.take<float>(m);
    delta = layout.take<float>(m);
    visible_begin = layout.take<std::int64_t>(m);
    visible_end = layout.take<std::int64_t>(m);
    row = layout.take<float>(d > columns ? d : columns);
    bytes = layout.bytes();
  }
};

}  // namespace strobe::cpu::amx
