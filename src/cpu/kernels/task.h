// SPDX-License-Identifier: Apache-2.0
// What one task of the CPU engine reads and writes: plain data shared by the scheduler and every instruction set.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "call/arithmetic.h"
#include "call/score_rule.h"
#include "call/visible_keys.h"
#include "cpu/expression/panel.h"
#include "cpu/kernels/paged_rows.h"
#include "kernels/math/philox.h"
#include "strobe/attention.h"
#include "strobe/tensor.h"

namespace strobe::cpu {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What row = position * group + head stands for. A 64-bit division takes as long on many processors as the products of
/// a short sequence's row: a group of one needs none, and rows below 2^32 a short one.
struct RowPlace {
  std::int64_t position;
  std::int64_t head;
};
inline RowPlace row_place(std::int64_t row, std::int64_t group) {
  if (group == 1) return {row, 0};
  if (row >> 32 != 0) return {row / group, row % group};
  const auto short_row = static_cast<std::uint32_t>(row);
  const auto short_group = static_cast<std::uint32_t>(group);
  return {short_row / short_group, short_row % short_group};
}

/// Rows of one group of heads in one sequence. The query heads that share a key head are interleaved with the
/// positions, row = position * group + head, so that grouped heads fill vector lanes and share the packed keys.
/// Key tensors have group = 1. Strides are in elements; a row's elements are contiguous.
template <class Pointer>
struct GroupRows {
  Pointer data = nullptr;
  std::int64_t position_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t group = 1;
  PagedRows pages;  // given: of a key tensor

  std::int64_t offset(std::int64_t row) const {
    if (pages.given()) [[unlikely]]
      return pages.offset(row, position_stride);
    const RowPlace place = row_place(row, group);
    return place.position * position_stride + place.head * head_stride;
  }

  /// The same rows without their first `columns` elements.
  GroupRows from_column(DType dtype, std::int64_t columns) const {
    return advanced(columns * static_cast<std::int64_t>(size_of(dtype)));
  }

  /// The next head's rows.
  GroupRows next_head(DType dtype) const {
    return data == nullptr ? *this : advanced(head_stride * static_cast<std::int64_t>(size_of(dtype)));
  }

 private:
  GroupRows advanced(std::int64_t bytes) const {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
    GroupRows rows = *this;
    rows.data = reinterpret_cast<Pointer>(reinterpret_cast<Byte*>(data) + bytes);
    return rows;
  }
};

using ConstRows = GroupRows<const void*>;
using MutableRows = GroupRows<void*>;

/// The block mask of one head: blocks of `size` positions by `size` keys. data null: every block is visible.
struct BlockMask {
  const std::uint8_t* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t size = 0;

  bool visible(std::int64_t position, std::int64_t key) const {
    return data == nullptr || data[position / size * row_stride + key / size] != 0;
  }
};

/// The tree mask of one sequence: a number for each query, whose bits say which of the sequence's last keys it sees.
struct TreeMask {
  const std::int64_t* words = nullptr;  // null: the call has none
  std::int64_t queries = 0;
  std::int64_t begin = 0;  // the key of bit 0; less than 0 where there are more queries than keys

  bool given() const { return words != nullptr; }
  /// Whether it may hide one of the keys before `end`.
  bool reaches(std::int64_t end) const { return given() && end > begin; }
  std::uint64_t word(std::int64_t position) const { return static_cast<std::uint64_t>(words[position]); }
  /// `key` is one of the sequence.
  bool shows(std::int64_t position, std::int64_t key) const {
    return key < begin || (word(position) >> (key - begin) & 1U) != 0;
  }
};

/// Scales of neighbouring rows. The heads of a group are head_stride apart.
struct RowScales {
  const float* data = nullptr;
  std::int64_t head_stride = 0;
  std::int64_t rows = 1;  // that share one

  float at(std::int64_t position, std::int64_t head = 0) const { return data[head * head_stride + position / rows]; }
};

/// What belongs to 8-bit operands of one group of heads: see strobe/quantize.h.
struct EightBitOperands {
  RowScales q;  // q.data null: the operands are not 8-bit
  RowScales k;
  RowScales v;
  RowScales q_shift;  // data null: none
  Rotation rotation;  // of V

  bool given() const { return q.data != nullptr; }
};

/// K and V of one head stored in 8 bits: each tile of them is converted to the computation's dtype before it is packed.
struct StoredOperands {
  DType dtype = DType::float32;
  RowScales k;  // k.data null: K and V are not stored in 8 bits
  RowScales v;

  bool given() const { return k.data != nullptr; }
};

/// ALiBi and bias of the heads of one group. Pointers are null where the call has none.
struct ScoreTerms {
  const float* alibi_slopes = nullptr;  // one for each head
  ConstRows bias;                       // a row for each query row, an element for each key
  DType bias_dtype = DType::float32;

  bool given() const { return alibi_slopes != nullptr || bias.data != nullptr; }
};

/// Dropout of one group of heads.
struct GroupDropout {
  DropoutKey key{};
  unsigned head = 0;  // the group's first, counted through the batch
  // Of the call's first query and key, in the whole sequence that they are a part of.
  std::int64_t first_position = 0;
  std::int64_t first_key = 0;
  bool given = false;
};

/// Tile sizes in rows. Chosen by make_call_plan.
struct Tiles {
  std::int64_t block_m = 0;  // query rows
  std::int64_t block_n = 0;  // keys
  // Forward: rows of a block that one row of a block mask covers, computed or skipped together; block_m without a mask.
  std::int64_t part_m = 0;
};

struct ForwardTask {
  DType dtype = DType::float32;    // of q, k and v; of the latter unless they are stored in 8 bits
  DType dtype_o = DType::float32;  // of o
  ConstRows q;
  ConstRows k;
  ConstRows v;
  ConstRows qv;  // data null: scores are products of q and k alone
  MutableRows o;
  GroupRows<float*> lse;  // data null: not wanted. An element per row
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;  // at most block_m rows
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  std::int64_t qv_columns = 0;  // head_dim_v where qv is given
  VisibleKeys visible;
  float query_factor = 1.0F;  // -1, 0 or 1, with the sign of the scale: q is multiplied by it
  ScoreScale score_scale;     // positive, so that the largest product has the largest exponent
  BlockMask blocks;
  TreeMask tree;
  ScoreTerms terms;
  ExpressionTask expression;
  GroupDropout dropout;
  const float* sinks = nullptr;  // one for each head of the group; null: none
  float* max_logits = nullptr;   // likewise; raised by every block's tasks
  EightBitOperands eight_bit;    // given: v holds a row for each column of V
  StoredOperands stored;         // given: k and v are of its dtype
  bool normalized = true;        // else P is the scores, 0 where hidden: neither lse, sinks nor max_logits are given
  bool row_invariant = false;    // few queries: sums in the order of forward-inl.h, with tiles of kFewQueriesKeys
  Tiles tiles;

  // The softmax works on products, on their tanh under softcap, and on scores where terms or a text's score join.
  // Differences of these are exact where they matter, however large they are: no factor is applied before the maximum
  // is subtracted.
  bool works_on_scores() const { return terms.given() || expression.has_score(); }
  // Whether softcap or a text's score must be given products of the keys as they were, not of centred ones.
  bool needs_shifted_products() const { return score_scale.capped || expression.has_score(); }
  float exponent_factor() const { return works_on_scores() ? kLog2E : score_scale.scale_log2; }
  float score_factor() const { return works_on_scores() ? 1.0F : score_scale.scale; }
};

/// A forward's task with the tangents of its operands.
struct JvpTask {
  ForwardTask forward;
  bool wants_o = true;  // else forward.o is o_tangent
  ConstRows q_tangent;  // data null: zero, as the next two
  ConstRows k_tangent;
  ConstRows v_tangent;
  MutableRows o_tangent;
  GroupRows<float*> lse_tangent;  // data null: not wanted
};

/// What probabilities are made of in the backward, an element per row: P = 2^(log2(e) (score - shift) - log2_sum). LSE
/// and 0, but where LSE is so large that its rounding would show.
struct RowNormalizers {
  float* shift = nullptr;
  float* log2_sum = nullptr;

  RowNormalizers from_row(std::int64_t row) const { return {shift + row, log2_sum + row}; }
};

/// Rows of queries in order, one group of heads of one sequence: what every key block's task shares. The next group's
/// arrays follow in memory.
struct BackwardQueries {
  ConstRows q;
  ConstRows qv;  // data null: none
  ConstRows d_o;
  RowNormalizers normalizers;
  const float* delta = nullptr;  // [rows]: rowsum(dO * O) - dLSE
  // [blocks of padded rows, columns of q and of qv in whole wide panels] float32 sums, without the scale.
  float* dq = nullptr;
  std::atomic<std::int32_t>* turn = nullptr;  // a block of rows each: the key block that may add to dq next
  std::int64_t rows = 0;
  BlockMask blocks;
  ScoreTerms terms;
  ExpressionTask expression;
  GroupDropout dropout;
  GroupRows<float*> d_bias;  // data null: not wanted

  /// Moves on to the next head; `dq_block` is the floats that a block of rows takes in dq.
  void next_head(DType dtype, std::int64_t block_m, std::int64_t dq_block) {
    const std::int64_t row_blocks = ceil_div(rows, block_m);
    q = q.next_head(dtype);
    qv = qv.next_head(dtype);
    d_o = d_o.next_head(dtype);
    normalizers = normalizers.from_row(row_blocks * block_m);
    delta += row_blocks * block_m;
    dq += row_blocks * dq_block;
    turn += row_blocks;
    blocks.data += blocks.head_stride;
    if (terms.alibi_slopes != nullptr) ++terms.alibi_slopes;
    terms.bias = terms.bias.next_head(terms.bias_dtype);
    ++dropout.head;
    ++expression.head;
    d_bias = d_bias.next_head(DType::float32);
  }
};

/// Bias gradients that several tasks add to, in the order of the tasks; or, where `alone`, one task writes them all.
struct BiasTurn {
  bool alone = false;
  const std::atomic<std::int32_t>* before =
      nullptr;                               // blocks of rows that the task before has added; null: it is first
  std::atomic<std::int32_t>* own = nullptr;  // null: nobody waits
};

/// Gradients of captures that tasks share, which add to them one after another; both null: no gradient is wanted.
struct CaptureTurn {
  const std::atomic<std::int32_t>* before = nullptr;  // 1: the task before is done; null: there is none
  std::atomic<std::int32_t>* own = nullptr;
};

struct BackwardTask {
  DType dtype = DType::float32;
  BackwardQueries queries;
  std::int64_t heads = 1;  // more than 1: groups of one head that share the keys, `queries` being the first
  BiasTurn bias_turn;
  CaptureTurn capture_turn;
  ConstRows k;
  ConstRows v;
  MutableRows dk;
  MutableRows dv;
  std::int64_t key_begin = 0;  // a multiple of block_n
  std::int64_t key_end = 0;    // at most block_n keys
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  bool normalized = true;       // else P is the scores, 0 where hidden: neither normalizers nor delta are read
  std::int64_t qv_columns = 0;  // as of ForwardTask
  float scale = 0.0F;
  VisibleKeys visible;
  ScoreScale score_scale;
  Tiles tiles;
};

/// delta and a zeroed dq for a block of rows: the backward's first phase. `d_lse.data` may be null.
struct DeltaTask {
  DType dtype = DType::float32;
  ConstRows o;
  ConstRows d_o;
  GroupRows<const float*> d_lse;
  float* delta = nullptr;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t head_dim_v = 0;
};

/// RowNormalizers of a block of rows of one group of heads: in the backward's first phase, too.
struct NormalizerTask {
  DType dtype = DType::float32;
  ConstRows q;
  ConstRows k;
  ConstRows qv;
  ConstRows v;  // read where qv is given
  GroupRows<const float*> lse;
  RowNormalizers normalizers;  // of row 0
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t head_dim = 0;
  std::int64_t qv_columns = 0;  // as of ForwardTask
  VisibleKeys visible;
  ScoreScale score_scale;
  BlockMask blocks;
  ScoreTerms terms;
  ExpressionTask expression;
  const float* sinks = nullptr;  // one for each head of the group; null: none
};

/// dQ of a block of rows from its float32 sums: the backward's last phase.
struct QueryGradientTask {
  DType dtype = DType::float32;
  MutableRows dq;
  float* sums = nullptr;  // of row_begin; multiplied by scale on the way out
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
