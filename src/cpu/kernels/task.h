// What one task of the CPU engine reads and writes: plain data shared by the scheduler and every instruction set.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "strobe/tensor.h"

namespace strobe::cpu {

/// Rows of one group of heads in one sequence. The query heads that share a key head are interleaved with the
/// positions, row = position * group + head, so that grouped heads fill vector lanes and share the packed keys.
/// Key tensors have group = 1. Strides are in elements; a row's elements are contiguous.
template <class Pointer>
struct Rows {
  Pointer data = nullptr;
  std::int64_t position_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t group = 1;

  std::int64_t offset(std::int64_t row) const { return (row / group) * position_stride + (row % group) * head_stride; }
};

using ConstRows = Rows<const void*>;
using MutableRows = Rows<void*>;

/// Which keys a query position sees: every mask of the library is an interval of keys per query,
/// [position + diagonal - left, position + diagonal + right] cut to [0, keys). Every field is at most 2^62.
struct VisibleKeys {
  std::int64_t keys = 0;
  std::int64_t diagonal = 0;
  std::int64_t left = 0;
  std::int64_t right = 0;

  std::int64_t begin(std::int64_t position) const {
    return std::clamp<std::int64_t>(position + diagonal - left, 0, keys);
  }
  std::int64_t end(std::int64_t position) const {
    return std::clamp<std::int64_t>(position + diagonal + right + 1, 0, keys);
  }
  // The same relation from the key's side: positions [first_position, last_position) see it.
  std::int64_t first_position(std::int64_t key, std::int64_t positions) const {
    return std::clamp<std::int64_t>(key - diagonal - right, 0, positions);
  }
  std::int64_t last_position(std::int64_t key, std::int64_t positions) const {
    return std::clamp<std::int64_t>(key - diagonal + left + 1, 0, positions);
  }
};

/// Products q.k -> base-2 exponents: s = (query_factor * q).k, exponent = score_scale * s; capped: t = tanh(tanh_scale
/// * s), exponent = score_scale * t. The sign of the user's scale is in query_factor (exactly), so that score_scale is
/// positive and the largest s has the largest exponent.
struct ScoreMap {
  float query_factor = 1.0F;
  float score_scale = 0.0F;
  bool capped = false;
  float tanh_scale = 0.0F;
};

/// Tile sizes in rows. Chosen by plan::cpu_plan.
struct Tiles {
  std::int64_t block_m = 0;  // query rows
  std::int64_t block_n = 0;  // keys
};

struct ForwardTask {
  DType dtype = DType::float32;
  ConstRows q;
  ConstRows k;
  ConstRows v;
  MutableRows o;
  Rows<float*> lse;  // data null: not wanted. An element per row
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;  // at most block_m rows
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  VisibleKeys visible;
  ScoreMap score_map;
  Tiles tiles;
};

/// Rows of queries in order, one group of heads of one sequence: what every key block's task shares.
struct BackwardQueries {
  ConstRows q;
  ConstRows d_o;
  Rows<const float*> lse;
  const float* delta = nullptr;  // [rows]: rowsum(dO * O) - dLSE
  float* dq = nullptr;  // [rows in whole blocks, head_dim in whole wide panels] float32 sums, without the scale
  std::atomic<std::int32_t>* turn = nullptr;  // a block of rows each: the key block that may add to dq next
  std::int64_t rows = 0;
};

struct BackwardTask {
  DType dtype = DType::float32;
  BackwardQueries queries;
  ConstRows k;
  ConstRows v;
  MutableRows dk;
  MutableRows dv;
  std::int64_t key_begin = 0;  // a multiple of block_n
  std::int64_t key_end = 0;    // at most block_n keys
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  float scale = 0.0F;
  VisibleKeys visible;
  ScoreMap score_map;  // query_factor is 1, score_scale has the sign of scale
  Tiles tiles;
};

/// delta and a zeroed dq for a block of rows: the backward's first phase. `d_lse.data` may be null.
struct DeltaTask {
  DType dtype = DType::float32;
  ConstRows o;
  ConstRows d_o;
  Rows<const float*> d_lse;
  float* delta = nullptr;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t head_dim_v = 0;
};

/// dQ of a block of rows from its float32 sums: the backward's last phase.
struct QueryGradientTask {
  DType dtype = DType::float32;
  MutableRows dq;
  float* sums = nullptr;  // of the sequence's first row; multiplied by scale on the way out
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t head_dim = 0;
  std::int64_t row_stride = 0;
  float scale = 0.0F;
};

/// The vector shape of an instruction set, which tile sizes are multiples of.
struct KernelTraits {
  const char* target = "";        // Highway's name: "AVX2", "AVX3", ...
  std::int64_t lanes = 0;         // float32 lanes of a vector
  std::int64_t panel = 0;         // rows that one micro-kernel covers across its lanes
  std::int64_t wide_panel = 0;    // columns that the dQ micro-kernel covers across its lanes
  std::int64_t strip = 0;         // interleaved columns of a packed left operand
  std::int64_t row_multiple = 0;  // rows of packed operands and dQ tiles are padded to this
};

}  // namespace strobe::cpu
