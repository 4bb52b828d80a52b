// SPDX-License-Identifier: Apache-2.0
// Rows of K in a format, whose first columns are V, for rows of O that are computed once more: see score/exact_row.h.
#pragma once

#include "kernels/sequence/cache.h"
#include "kernels/sequence/stored_pieces.h"

namespace strobe::sequence {

/// Of one sequence and of the only head.
template <StoredFormat F, Element element>
class FormatRows {
 public:
  struct Row {
    StoredRow stored;  // body null: a row that does not exist
    __device__ __forceinline__ float operator[](int column) const {
      if (stored.body == nullptr) {
        return 0.0F;
      }
      const int first = column / kPieceColumns * kPieceColumns;
      float x[kPieceColumns];
      piece_values<F>(load_piece<F>(stored, first), first, x);
      float value = 0.0F;
#pragma unroll
      for (int i = 0; i < kPieceColumns; ++i) {
        value = column - first == i ? x[i] : value;
      }
      return to_float<element>(static_cast<unsigned short>(pack<element>(value, 0.0F)));
    }
  };

  /// `first`: the sequence's first row.
  __device__ __forceinline__ FormatRows(const CacheParams& table, const FormatParams& params, int sequence, int first)
      : table_(table), params_(params), sequence_(sequence), first_(first) {}

  template <typename ExactRow>
  __device__ __forceinline__ Row key(const ExactRow&, int key) const {
    const int row = first_ + key;
    return {format_row<F>(table_, params_, page_number(table_, sequence_, row), sequence_, row)};
  }
  template <typename ExactRow>
  __device__ __forceinline__ Row value(const ExactRow& row, int key) const {
    return this->key(row, key);
  }

 private:
  const CacheParams& table_;
  const FormatParams& params_;
  const int sequence_, first_;
};

}  // namespace strobe::sequence
