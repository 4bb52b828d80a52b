// SPDX-License-Identifier: Apache-2.0
// The memory in which a worker runs its AMX tasks, one after another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "call/arithmetic.h"
#include "cpu/kernels/arena.h"
#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"
#include "strobe/float16.h"

namespace strobe::cpu::bf16 {

/// A matrix tile holds 16 rows of 64 bytes: 16 x 32 bfloat16 of a left operand, 32 x 16 of a right one (in pairs of
/// rows), 16 x 16 float32 of a sum.
inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileDepth = 32;
inline constexpr std::int64_t kTileElements = kTileRows * kTileDepth;  // bfloat16
/// Products go through registers as 2 x 2 tiles of sums, so rows, columns and keys come in blocks of 32.
inline constexpr std::int64_t kBlock = 2 * kTileRows;

/// Of forward-inl.h. Tiles are multiples of kBlock.
struct ForwardScratch {
  ForwardScratch(std::byte* memory, std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t qv_columns,
                 bool stored, Tiles tiles)
      : columns(score_columns(head_dim, qv_columns, kBlock)),
        columns_v(round_up(head_dim_v, kBlock)),
        tile_bytes(converted_bytes(stored, tiles.block_n, head_dim, head_dim_v)),
        m(tiles.block_m),
        n(tiles.block_n),
        arena(memory) {}

  const std::int64_t columns;    // score_columns() in whole blocks
  const std::int64_t columns_v;  // head_dim_v in whole blocks
  const std::int64_t tile_bytes;
  const std::int64_t m;
  const std::int64_t n;
  Arena arena;

  bfloat16* const keys = arena.take<bfloat16>(n, columns);             // K tile (and V's behind it), left operand
  bfloat16* const values = arena.take<bfloat16>(n, columns_v);         // V^T tile, left operand
  bfloat16* const queries = arena.take<bfloat16>(m, columns);          // Q^T, right operand
  float* const output = arena.take<float>(m, columns_v);               // O^T unscaled, panels of kBlock queries
  float* const scores = arena.take<float>(2, n, kBlock);               // S^T of two panels
  bfloat16* const probabilities = arena.take<bfloat16>(2, n, kBlock);  // P^T of two panels, right operands
  float* const row_max = arena.take<float>(m);                         // of scores, as the task's softmax has them
  float* const row_sum = arena.take<float>(m);                         // of exp2(exponent - row_max's)
  float* const rescale = arena.take<float>(m);                         // of earlier sums, by the latest tile
  std::int64_t* const visible_begin = arena.take<std::int64_t>(m);     // first visible key of each row
  std::int64_t* const visible_end = arena.take<std::int64_t>(m);       // one past the last
  std::byte* const converted = arena.take<std::byte>(tile_bytes);      // of K or V stored in 8 bits
};

/// Of row_normalizers-inl.h.
struct NormalizerScratch {
  NormalizerScratch(std::byte* memory, std::int64_t head_dim) : columns(round_up(head_dim, kBlock)), arena(memory) {}

  const std::int64_t columns;  // head_dim in whole blocks
  Arena arena;

  bfloat16* const keys = arena.take<bfloat16>(kBlock, columns);     // left operand
  bfloat16* const queries = arena.take<bfloat16>(kBlock, columns);  // Q^T, right operand
  float* const scores = arena.take<float>(kBlock, kBlock);          // S^T
  float* const bias = arena.take<float>(kBlock, kBlock);
  float* const row = arena.take<float>(kBlock, kBlock);  // rows of the bias on their way
  std::int64_t* const visible_begin = arena.take<std::int64_t>(kBlock);
  std::int64_t* const visible_end = arena.take<std::int64_t>(kBlock);
};

/// Of backward-inl.h. Tiles are multiples of kBlock.
struct BackwardScratch {
  BackwardScratch(std::byte* memory, std::int64_t head_dim, std::int64_t head_dim_v, Tiles tiles)
      : columns(round_up(head_dim, kBlock)),
        columns_v(round_up(head_dim_v, kBlock)),
        m(tiles.block_m),
        n(tiles.block_n),
        arena(memory) {}

  const std::int64_t columns;    // head_dim in whole blocks
  const std::int64_t columns_v;  // head_dim_v in whole blocks
  const std::int64_t m;
  const std::int64_t n;
  Arena arena;

  bfloat16* const keys = arena.take<bfloat16>(n, columns);                // K, left operand
  bfloat16* const values = arena.take<bfloat16>(n, columns_v);            // V, left operand
  bfloat16* const keys_transposed = arena.take<bfloat16>(n, columns);     // K^T, left operand
  float* const dk = arena.take<float>(n, columns);                        // sums, [keys, head_dim]
  float* const dv = arena.take<float>(n, columns_v);                      // sums, [keys, head_dim_v]
  bfloat16* const queries = arena.take<bfloat16>(m, columns);             // Q of the block, right operand
  bfloat16* const d_o = arena.take<bfloat16>(m, columns_v);               // dO, right operand
  bfloat16* const queries_transposed = arena.take<bfloat16>(m, columns);  // Q^T, right operand
  bfloat16* const d_o_transposed = arena.take<bfloat16>(m, columns_v);    // dO^T, right operand
  float* const scores = arena.take<float>(2, kBlock, kBlock);             // S^T of two blocks of pairs
  float* const d_probabilities = arena.take<float>(2, kBlock, kBlock);    // dP^T likewise
  bfloat16* const probability_rows = arena.take<bfloat16>(m, n);          // P^T, left operand
  bfloat16* const d_score_rows = arena.take<bfloat16>(m, n);              // dS^T, left operand
  bfloat16* const d_score_pairs = arena.take<bfloat16>(m, n);             // dS^T, right operand
  float* const shift = arena.take<float>(m);                              // of the block: RowNormalizers
  float* const log2_sum = arena.take<float>(m);
  float* const delta = arena.take<float>(m);                           // of the block
  std::int64_t* const visible_begin = arena.take<std::int64_t>(m);     // first visible key of each row
  std::int64_t* const visible_end = arena.take<std::int64_t>(m);       // one past the last
  float* const row = arena.take<float>(std::max(columns, columns_v));  // one row on its way out
};

}  // namespace strobe::cpu::bf16
