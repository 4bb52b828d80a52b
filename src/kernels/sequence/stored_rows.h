// SPDX-License-Identifier: Apache-2.0
// Rows of K and V stored in 8 bits, for rows of O that are computed once more: see score/exact_row.h.
#pragma once

#include "kernels/math/stored.h"
#include "kernels/sequence/scales.h"

namespace strobe::sequence {

/// Rows of K and V of one sequence and head. `Places`: ElementRows or CachedRows, which find a row; rows count pairs of
/// 8-bit elements. `rounds`: products of elements and scales are rounded to `element`.
template <Element stored, Element element, bool rounds, typename Places>
class StoredRows {
 public:
  struct Row {
    const unsigned char* elements;  // null: a row that does not exist
    float scale;
    __device__ __forceinline__ float operator[](int column) const {
      if (elements == nullptr) {
        return 0.0F;
      }
      return rounds ? converted<stored, element>(elements[column], scale)
                    : __fmul_rn(element_of<stored>(elements[column]), scale);
    }
  };

  __device__ __forceinline__ StoredRows(const Places& places, const ScaleParams& k, const ScaleParams& v, int sequence,
                                        int head)
      : places_(places), k_(k), v_(v), sequence_(sequence), head_(head) {}

  template <typename ExactRow>
  __device__ __forceinline__ Row key(const ExactRow& row, int key) const {
    return row_of(places_.key(row, key).elements, k_, key);
  }
  template <typename ExactRow>
  __device__ __forceinline__ Row value(const ExactRow& row, int key) const {
    return row_of(places_.value(row, key).elements, v_, key);
  }

 private:
  __device__ __forceinline__ Row row_of(const unsigned short* pairs, const ScaleParams& scales, int key) const {
    return {reinterpret_cast<const unsigned char*>(pairs), scales.of(sequence_, head_)[key >> scales.shift]};
  }

  const Places places_;
  const ScaleParams& k_;
  const ScaleParams& v_;
  const int sequence_, head_;
};

}  // namespace strobe::sequence
