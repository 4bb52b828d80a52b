// SPDX-License-Identifier: Apache-2.0
// Dropout of the probabilities of sixteen rows, drawn as they become operands. Two lanes of neighbouring rows draw
// every second block of Philox and give each other half of it: score/dropout.h.
#pragma once

#include "kernels/score/modifiers/dropout.h"
#include "kernels/sm80/forward/config.h"

namespace strobe::sm80::forward {

template <Config C>
class RowDropout {
 public:
  /// `head`: counted through the batch; `query`: this thread's first.
  __device__ __forceinline__ RowDropout(const DropoutParams& params, int head, int query)
      : key_(score::dropout_key_of(params)), head_(head), query_(query), slices_(key_) {
    static_assert(C.block_n % kDropoutColumns == 0);
  }

  /// Zeros where the probabilities of the sixteen keys of step `step` of block n are dropped. Steps come in order.
  __device__ __forceinline__ void apply(unsigned (&p)[4], int n, int step) {
    if (step % 2 == 0) {
      slices_ =
          score::draw_rows<kDropoutColumns>(key_, head_, query_, n * C.block_n + step * 16 + score::fragment_column());
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      p[j] &= ~slices_.dropped(step % 2, j % score::kRowsPerThread, j / score::kRowsPerThread);
    }
  }

 private:
  DropoutKey key_;
  int head_, query_;
  score::DropoutSlices<kDropoutColumns> slices_;
};

/// Dropout of rules that have none.
template <Config C>
  requires(!C.rule.dropout)
class RowDropout<C> {
 public:
  __device__ __forceinline__ RowDropout(const DropoutParams&, int, int) {}
  __device__ __forceinline__ void apply(unsigned (&)[4], int, int) {}
};

}  // namespace strobe::sm80::forward
