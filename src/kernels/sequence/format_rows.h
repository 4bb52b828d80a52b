// SPDX-License-Identifier: Apache-2.0
// Rows of K in a format, whose first columns are V, for rows of O that are computed once more: see score/exact_row.h.
#pragma once

#include "kernels/sequence/cache.h"
#include "kernels/sequence/stored_pieces.h"

namespace strobe::sequence {

/// Of one sequence, whose pages are rows, and of the only head.
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
  __device__ __forceinline__ FormatRows(const CacheParams& cache, const StoredCache& rows, int sequence, int first)
      : cache_(cache), rows_(rows), sequence_(sequence), first_(first) {}

  template <typename ExactRow>
  __device__ __forceinline__ Row key(const ExactRow&, int key) const {
    const int place = existing(cache_, page_number(cache_, sequence_, first_ + key));
    return {place == kNoEntry ? StoredRow{nullptr, nullptr} : rows_.template row<F>(place, 0)};
  }
  template <typename ExactRow>
  __device__ __forceinline__ Row value(const ExactRow& row, int key) const {
    return this->key(row, key);
  }

 private:
  const CacheParams& cache_;
  const StoredCache& rows_;
  const int sequence_, first_;
};

}  // namespace strobe::sequence
