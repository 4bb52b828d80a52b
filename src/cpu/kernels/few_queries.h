// SPDX-License-Identifier: Apache-2.0
// What the kernels for few queries work in: a chunk of keys against every query row of some heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "call/arithmetic.h"
#include "cpu/kernels/arena.h"
#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

/// Keys that a head takes at a time, before the next head takes the same ones: a block mask's blocks are multiples.
inline constexpr std::int64_t kFewQueriesKeys = 64;

/// Heads of one task, at most.
inline constexpr std::int64_t kFewQueriesHeads = 16;

/// Query rows of one sequence and group of heads, at most: with 16 this path takes half of the time of packed tiles,
/// with 32 the same, with 64 a tenth more.
inline constexpr std::int64_t kFewQueriesRows = 32;

/// Statistics and unscaled output of the rows of one group of heads over one chunk of keys.
template <class Float>
struct BasicFewQueriesState {
  BasicFewQueriesState(Float* memory, std::int64_t rows)
      : row_max(memory), row_sum(row_max + round_up(rows, kLine)), output(row_sum + round_up(rows, kLine)) {}

  /// Floats that one takes, in whole cache lines; `columns` of the output are whole vectors.
  static std::int64_t size(std::int64_t rows, std::int64_t columns) {
    return 2 * round_up(rows, kLine) + round_up(rows * columns, kLine);
  }

  Float* row_max;  // of scores, as the task's softmax has them
  Float* row_sum;  // of exp2(exponent - row_max's)
  Float* output;   // [rows, columns]

 private:
  static constexpr std::int64_t kLine = 16;
};
using FewQueriesState = BasicFewQueriesState<float>;
using ConstFewQueriesState = BasicFewQueriesState<const float>;

/// Keys [key_begin, key_end) of one sequence, a multiple of kFewQueriesKeys where they begin, against some groups of
/// heads.
struct FewQueriesTask {
  std::span<const ForwardTask> heads;  // a group each; all but pointers alike
  std::int64_t key_begin = 0;
  std::int64_t key_end = 0;
  float* states = nullptr;  // one a group, state_floats apart
  std::int64_t state_floats = 0;
};

/// What few_queries_chunk() takes.
struct FewQueriesScratch {
  FewQueriesScratch(std::byte* memory, std::int64_t head_dim, std::int64_t head_dim_v, bool has_qv, bool stored,
                    std::int64_t rows, std::int64_t heads, const KernelTraits& traits)
      : columns(round_up(head_dim, traits.lanes)),
        columns_v(round_up(head_dim_v, traits.lanes)),
        qv_columns(has_qv ? columns_v : 0),
        qv_keys(has_qv ? kFewQueriesKeys : 0),
        m(rows),
        m_padded(round_up(rows, traits.lanes)),
        all_rows(heads * rows),
        all_heads(heads),
        words(rows * keep_words(kFewQueriesKeys)),
        tile_bytes(converted_bytes(stored, kFewQueriesKeys, head_dim, head_dim_v)),
        arena(memory) {}

  const std::int64_t columns;     // head_dim in whole vectors
  const std::int64_t columns_v;   // head_dim_v in whole vectors
  const std::int64_t qv_columns;  // likewise of qv; 0 without it
  const std::int64_t qv_keys;
  const std::int64_t m;         // rows of one group of heads
  const std::int64_t m_padded;  // in whole vectors
  const std::int64_t all_rows;
  const std::int64_t all_heads;
  const std::int64_t words;
  const std::int64_t tile_bytes;
  Arena arena;

  float* const queries = arena.take<float>(all_heads, m_padded, columns);          // [heads, rows, columns]
  float* const query_values = arena.take<float>(all_heads, m_padded, qv_columns);  // qv, as queries
  float* const value_scores = arena.take<float>(m_padded, qv_keys);                // of one head: qv V^T
  float* const scores = arena.take<float>(all_heads, m_padded, kFewQueriesKeys);   // then probabilities
  float* const widened = arena.take<float>(kFewQueriesKeys * (columns > columns_v ? columns : columns_v));  // K or V
  float* const top = arena.take<float>(m_padded);                   // of a block's scores, of each row
  float* const shift = arena.take<float>(m_padded);                 // taken from the scores
  float* const rescale = arena.take<float>(m_padded);               // of what was summed before
  std::int64_t* const visible_begin = arena.take<std::int64_t>(m);  // of each row: in the sequence
  std::int64_t* const visible_end = arena.take<std::int64_t>(m);
  std::int64_t* const begin = arena.take<std::int64_t>(all_rows);  // the same in the block of keys at hand
  std::int64_t* const end = arena.take<std::int64_t>(all_rows);
  std::int64_t* const any_begin = arena.take<std::int64_t>(all_heads);  // what any row of a head sees
  std::int64_t* const any_end = arena.take<std::int64_t>(all_heads);
  float* const block_output = arena.take<float>(all_rows, columns_v);  // of row-invariant calls: P V of a block
  float* const block_rescale = arena.take<float>(all_rows);
  std::uint32_t* const kept = arena.take<std::uint32_t>(words);
  std::byte* const converted = arena.take<std::byte>(tile_bytes);  // of K or V stored in 8 bits
};

}  // namespace strobe::cpu
