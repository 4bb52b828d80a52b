// SPDX-License-Identifier: Apache-2.0
// What of sparse attention is compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "call/arithmetic.h"
#include "call/row_format.h"
#include "cpu/kernels/arena.h"

namespace strobe::cpu {

/// The columns of a row as float32: `to` has room for format.columns().
void decode_row(const RowFormat& format, const RowBytes<const std::byte>& from, float* to);

// Keys of a step: their rows and scores stay in the nearest caches.
inline constexpr std::int64_t kSparseBlock = 64;

/// Floats from one row of a panel to the next: whole vectors of any instruction set.
constexpr std::int64_t panel_stride(std::int64_t columns) { return round_up(columns, 16); }

/// A listed key.
struct ListedKey {
  RowBytes<const std::byte> k;
  RowBytes<const std::byte> v;
  const RowFormat* k_format;
  const RowFormat* v_format;  // null: V is the first columns of K
};

/// What becomes of a product: a power of 2 whose exponent is scale_log2 times it, or cap_log2 * tanh(cap_scale * it).
struct ListedScores {
  float scale_log2;
  float cap_scale;
  float cap_log2;  // 0: no softcap
};

/// The query heads that read the rows of one key head, and what they have gathered of some keys: O, not yet divided by
/// its row sums, and the largest exponent of each row.
struct ListedState {
  ListedState() = default;
  ListedState(Arena& arena, std::int64_t the_rows, std::int64_t head_dim_v)
      : rows(the_rows),
        stride(panel_stride(head_dim_v)),
        o(arena.take<float>(rows, stride)),
        maximum(arena.take<float>(rows)),
        sum(arena.take<float>(rows)) {}

  std::int64_t rows = 0;
  std::int64_t stride = 0;
  float* o = nullptr;
  float* maximum = nullptr;
  float* sum = nullptr;
};

/// A worker's panels.
struct ListedScratch {
  ListedScratch(Arena& arena, std::int64_t rows, std::int64_t head_dim, std::int64_t head_dim_v, bool v_apart)
      : k_stride(panel_stride(head_dim)),
        v_stride(v_apart ? panel_stride(head_dim_v) : k_stride),
        q(arena.take<float>(rows, k_stride)),
        k(arena.take<float>(kSparseBlock, k_stride)),
        v(v_apart ? arena.take<float>(kSparseBlock, v_stride) : k),
        scores(arena.take<float>(rows, kSparseBlock)),
        factors(arena.take<float>(rows)) {}

  std::int64_t k_stride;
  std::int64_t v_stride;
  float* q;        // [rows][k_stride], zeros behind head_dim
  float* k;        // [kSparseBlock][k_stride], likewise
  float* v;        // k itself where V is never apart
  float* scores;   // [rows][kSparseBlock]
  float* factors;  // [rows]
};

/// A worker's panels for gradients.
struct ListedGradientScratch {
  ListedGradientScratch(Arena& arena, std::int64_t the_rows, std::int64_t head_dim, std::int64_t head_dim_v,
                        bool v_apart)
      : rows(the_rows),
        forward(arena, rows, head_dim, head_dim_v, v_apart),
        d_o(arena.take<float>(rows, forward.v_stride)),
        dq(arena.take<float>(rows, forward.k_stride)),
        d_scores(arena.take<float>(rows, kSparseBlock)),
        lse_log2(arena.take<float>(rows)),
        correction(arena.take<float>(rows)) {}

  std::int64_t rows;
  ListedScratch forward;
  float* d_o;         // [rows][v_stride], zeros behind head_dim_v
  float* dq;          // [rows][k_stride], without the scale
  float* d_scores;    // [rows][kSparseBlock]
  float* lse_log2;    // [rows]
  float* correction;  // D - dLSE of each row
};

/// Adds what up to kSparseBlock keys give to dq, and writes the probabilities and the gradients of the products, [keys]
/// [rows], to `p` and `ds`.
void differentiate_listed(std::span<const ListedKey> keys, const ListedScores& scores, std::int64_t head_dim,
                          std::int64_t head_dim_v, const ListedGradientScratch& scratch, float* p, float* ds);

/// to[n][c] += the sum over `rows` of weights[n][row] * from[row][c], for each n in turn; `columns` is a multiple
/// of 16.
void scatter_listed(const float* weights, std::int64_t rows, const float* from, std::int64_t stride,
                    std::int64_t columns, std::span<float* const> to);

/// O, maximum and sum of no key.
void clear_listed(const ListedState& state);

/// Adds up to kSparseBlock keys.
void add_listed(std::span<const ListedKey> keys, const ListedScores& scores, std::int64_t head_dim,
                std::int64_t head_dim_v, const ListedScratch& scratch, const ListedState& state);

/// parts[0].o of row `row`: the sum of each part's times its weight.
void join_listed(std::span<const ListedState> parts, std::span<const float> weights, std::int64_t row);

/// `count` floats times `factor` to a dtype.
void store_listed(const float* from, float factor, DType dtype, void* to, std::int64_t count);

}  // namespace strobe::cpu
