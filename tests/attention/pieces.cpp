// SPDX-License-Identifier: Apache-2.0
#include "pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "call/arithmetic.h"
#include "matches_reference.h"
#include "reference/bound/visibility.h"

namespace strobe::test {
namespace {

template <class View>
View advanced_by(View view, std::int64_t elements) {
  view.data = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(view.data))) +
              elements * static_cast<std::int64_t>(size_of(view.dtype));
  return view;
}

/// Rows [begin, begin + count) of one sequence and some heads, as a batch of one; of [.., rows, heads, columns].
template <class View>
View rows_of(const View& view, std::int64_t sequence, std::int64_t first, std::int64_t begin, std::int64_t count,
             std::int64_t head, std::int64_t heads) {
  const bool packed = view.rank == 3;
  const std::int64_t row_stride = view.strides[packed ? 0 : 1];
  const std::int64_t head_stride = view.strides[packed ? 1 : 2];
  const std::int64_t entry = packed ? first * row_stride : sequence * view.strides[0];
  View part = advanced_by(view, entry + begin * row_stride + head * head_stride);
  part.rank = 4;
  part.shape = {1, count, heads, reference::head_dim_of(view)};
  part.strides = {count * row_stride, row_stride, head_stride, 1};
  return part;
}

/// Of a tensor [batch or 1, heads_q or 1, rows, columns]; extents of 1 stand for all.
ConstTensorView plane_of(const ConstTensorView& view, const Piece& piece, std::int64_t row, std::int64_t rows,
                         std::int64_t columns) {
  if (!view.given()) return {};
  const bool per_head = view.shape[1] > 1;
  const std::int64_t entry = view.shape[0] > 1 ? piece.sequence.sequence * view.strides[0] : 0;
  ConstTensorView part =
      advanced_by(view, entry + (per_head ? piece.head * view.strides[1] : 0) + row * view.strides[2]);
  part.shape = {1, per_head ? piece.heads : 1, rows, columns};
  return part;
}

ScoreModifiers modifiers_of(const ScoreModifiers& from, const Piece& piece) {
  ScoreModifiers modifiers = from;
  if (const ConstTensorView& slopes = from.alibi_slopes; slopes.given()) {
    const std::int64_t entry = slopes.rank == 2 ? piece.sequence.sequence * slopes.strides[0] : 0;
    const auto* data = static_cast<const float*>(slopes.data) + entry;
    modifiers.alibi_slopes = tensor(data + piece.head * slopes.strides[slopes.rank - 1], {piece.heads});
  }
  if (from.sink.given()) modifiers.sink = tensor(static_cast<const float*>(from.sink.data) + piece.head, {piece.heads});
  modifiers.bias = plane_of(from.bias, piece, piece.row_begin, piece.rows(), piece.keys);
  modifiers.block_mask = plane_of(from.block_mask, piece, piece.row_begin / from.block_size,
                                  ceil_div(piece.rows(), from.block_size), ceil_div(piece.keys, from.block_size));
  return modifiers;
}

}  // namespace

PieceCall::PieceCall(const ForwardArguments& whole, const Piece& piece, const AttentionOptions& options)
    : whole_(whole),
      piece_(piece),
      columns_(reference::head_dim_of(whole.v)),
      o_(static_cast<std::size_t>(piece.rows() * piece.heads * columns_) * size_of(whole.o.dtype), std::byte{0xff}),
      lse_(static_cast<std::size_t>(piece.rows() * piece.heads), std::numeric_limits<float>::quiet_NaN()) {
  const bool one_head = piece.heads < reference::heads_of(whole.q);
  const std::int64_t group = reference::heads_of(whole.q) / reference::heads_of(whole.k);
  const std::int64_t head_kv = one_head ? piece.head / group : 0;
  const std::int64_t heads_kv = one_head ? 1 : reference::heads_of(whole.k);
  const reference::SequenceRows& at = piece.sequence;
  call_.q = rows_of(whole.q, at.sequence, at.first_q, piece.row_begin, piece.rows(), piece.head, piece.heads);
  if (whole.qv.given()) {
    call_.qv = rows_of(whole.qv, at.sequence, at.first_q, piece.row_begin, piece.rows(), piece.head, piece.heads);
  }
  call_.k = rows_of(whole.k, at.sequence, at.first_k, 0, piece.keys, head_kv, heads_kv);
  call_.v = rows_of(whole.v, at.sequence, at.first_k, 0, piece.keys, head_kv, heads_kv);
  call_.o = {.data = o_.data(), .dtype = whole.o.dtype, .device = whole.o.device, .rank = 4};
  call_.o.shape = {1, piece.rows(), piece.heads, columns_};
  call_.o.strides = {piece.rows() * piece.heads * columns_, piece.heads * columns_, columns_, 1};
  if (options.normalize == Normalization::softmax) call_.lse = tensor(lse_.data(), {1, piece.heads, piece.rows()});
  call_.modifiers = modifiers_of(whole.modifiers, piece);
  if (piece.at_offset) set_offsets(options);
  call_.random = whole.random;
  call_.random.first_batch += at.sequence;
  call_.random.first_head += piece.head;
  call_.random.heads = whole.random.heads == 0 ? reference::heads_of(whole.q) : whole.random.heads;
}

void PieceCall::set_offsets(const AttentionOptions& options) {
  const reference::SequenceRows& at = piece_.sequence;
  const std::int64_t center = reference::center_of(piece_.row_begin, at, options);
  // Queries before the first key have no position in a sequence that begins there: it begins whole chunks earlier.
  const std::int64_t first_key = std::max(at.position_k, -center);
  const std::int64_t unit = at.is_part ? 1 : std::max<std::int64_t>(options.chunk, 1);
  offset_k_ = static_cast<std::int32_t>(round_up(first_key, unit));
  offset_q_ = static_cast<std::int32_t>(offset_k_ + center);
  call_.sequences.offset_q = tensor(&offset_q_, {1});
  call_.sequences.offset_k = tensor(&offset_k_, {1});
}

void PieceCall::expect_the_bits_of_the_whole(const std::function<Status(const ForwardArguments&)>& run) const {
  const Status status = run(call_);
  ASSERT_TRUE(status.ok()) << status.message();
  const reference::SequenceRows& at = piece_.sequence;
  const TensorView o =
      rows_of(whole_.o, at.sequence, at.first_q, piece_.row_begin, piece_.rows(), piece_.head, piece_.heads);
  const std::size_t bytes = static_cast<std::size_t>(columns_) * size_of(o.dtype);
  for (std::int64_t row = 0; row < piece_.rows(); ++row) {
    for (std::int64_t head = 0; head < piece_.heads; ++head) {
      const TensorView expected = advanced_by(o, row * o.strides[1] + head * o.strides[2]);
      const std::byte* actual = o_.data() + static_cast<std::size_t>(row * piece_.heads + head) * bytes;
      ASSERT_EQ(std::memcmp(expected.data, actual, bytes), 0) << "o of row " << row << ", head " << head;
      if (!whole_.lse.given()) continue;
      const float* lse = lse_.data() + head * piece_.rows() + row;
      ASSERT_EQ(std::memcmp(lse_of_whole(row, head), lse, sizeof(float)), 0) << "lse of " << row << ", " << head;
    }
  }
}

const float* PieceCall::lse_of_whole(std::int64_t row, std::int64_t head) const {
  const TensorView& lse = whole_.lse;
  const std::int64_t position = piece_.row_begin + row;
  const std::int64_t offset =
      lse.rank == 2 ? (piece_.head + head) * lse.strides[0] + (piece_.sequence.first_q + position) * lse.strides[1]
                    : piece_.sequence.sequence * lse.strides[0] + (piece_.head + head) * lse.strides[1] +
                          position * lse.strides[2];
  return static_cast<const float*>(lse.data) + offset;
}

Piece random_piece(const AttentionCase& attention, const reference::SequenceRows& sequence, Random& random) {
  Piece piece{.sequence = sequence, .row_end = sequence.seqlen_q, .keys = sequence.seqlen_k};
  const std::int64_t last = sequence.seqlen_q - 1;
  const std::int64_t whole_blocks = attention.blocks ? attention.blocks->size : 1;
  const bool one_row = random.chance(0.4);
  piece.at_offset = sequence.is_part || (attention.options.row_invariant && random.chance(0.5));
  if (piece.at_offset) {
    piece.row_begin = round_down(random.integer(0, last), whole_blocks);
    piece.row_end = one_row ? piece.row_begin + 1 : random.integer(piece.row_begin + 1, last + 1);
  } else if (attention.options.causal == CausalMask::top_left) {
    piece.row_end = one_row ? 1 : random.integer(1, last + 1);
  } else {
    piece.row_begin = round_down(random.integer(0, last), whole_blocks);
    const std::int64_t end = one_row ? piece.row_begin + 1 : random.integer(piece.row_begin + 1, last + 1);
    const std::int64_t keys = sequence.seqlen_k - sequence.seqlen_q + end;
    if (attention.options.causal == CausalMask::bottom_right && keys >= 0) {
      piece.row_end = end;
      piece.keys = keys;
    }
  }
  const bool all_heads = random.chance(0.5);
  piece.head = all_heads ? 0 : random.integer(0, attention.heads_q - 1);
  piece.heads = all_heads ? attention.heads_q : 1;
  return piece;
}

}  // namespace strobe::test
