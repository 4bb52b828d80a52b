// SPDX-License-Identifier: Apache-2.0
// Calls that compute some rows of a larger call, for tests of row-invariant forwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "attention_case.h"
#include "random.h"
#include "reference/tensors.h"
#include "strobe/attention.h"

namespace strobe::test {

/// What a call of its own computes of a larger one.
struct Piece {
  reference::SequenceRows sequence;
  std::int64_t row_begin = 0;  // queries of the sequence
  std::int64_t row_end = 0;
  std::int64_t keys = 0;  // the sequence's first
  std::int64_t head = 0;
  std::int64_t heads = 1;  // with all heads of k, or one head of q and its key head
  bool at_offset = false;  // the call says where in their sequence its rows are

  std::int64_t rows() const { return row_end - row_begin; }
};

/// The call of a piece, with outputs of its own; `whole` must outlive it.
class PieceCall {
 public:
  PieceCall(const ForwardArguments& whole, const Piece& piece, const AttentionOptions& options);
  PieceCall(const PieceCall&) = delete;
  PieceCall& operator=(const PieceCall&) = delete;

  /// Runs it and expects the bits that `whole`, which has run, has for these rows.
  void expect_the_bits_of_the_whole(const std::function<Status(const ForwardArguments&)>& run) const;

 private:
  void set_offsets(const AttentionOptions& options);
  const float* lse_of_whole(std::int64_t row, std::int64_t head) const;

  const ForwardArguments& whole_;
  const Piece piece_;
  const std::int64_t columns_;
  std::vector<std::byte> o_;
  std::vector<float> lse_;
  std::int32_t offset_q_ = 0;
  std::int32_t offset_k_ = 0;
  ForwardArguments call_;
};

/// Rows that a call of their own can have: its last query is the sequence's, unless keys after a query are hidden, or
/// its first one is. At offsets, any rows.
Piece random_piece(const AttentionCase& attention, const reference::SequenceRows& sequence, Random& random);

}  // namespace strobe::test
