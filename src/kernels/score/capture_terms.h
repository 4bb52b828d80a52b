// SPDX-License-Identifier: Apache-2.0
// Where a term of a capture's gradient is added: to the element in any order, or, where the bits must be the same every
// time, to the element's exact sum, which auxiliary/round_gradient.h rounds in the end.
#pragma once

#include "kernels/math/exact_sum.h"

namespace strobe::score {

/// `gradient`: elements, or exact sums of them that begin as zero.
template <bool exact>
__device__ __forceinline__ void add_term(void* gradient, long long element, float term) {
  if constexpr (!exact) {
    atomicAdd(static_cast<float*>(gradient) + element, term);
  } else {
    auto* const words = static_cast<unsigned long long*>(gradient);
    const unsigned bits = __float_as_uint(term);
    if ((bits & 0x7f800000U) == 0x7f800000U) {
      atomicOr(words + exact_sum_word(element, kExactSumDigits), exact_sum_flag(bits));
      return;
    }
    const ExactTerm parts = exact_term(bits);
    if (parts.lower != 0) {
      atomicAdd(words + exact_sum_word(element, parts.first), static_cast<unsigned long long>(parts.lower));
    }
    if (parts.upper != 0) {
      atomicAdd(words + exact_sum_word(element, parts.first + 1), static_cast<unsigned long long>(parts.upper));
    }
  }
}

}  // namespace strobe::score
