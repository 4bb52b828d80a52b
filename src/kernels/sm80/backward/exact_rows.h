// SPDX-License-Identifier: Apache-2.0
// Rows of gradients that are not finite, once more: see score/exact_gradients.h.
#pragma once

#include "kernels/score/exact_gradients.h"
#include "kernels/sm80/backward/steps.h"

namespace strobe::sm80::backward {

/// Computes again those of the CTA's keys from `first` on whose dK or dV is not finite: each warp its share.
template <Config C>
__device__ __forceinline__ void repair_keys(const Params& params, const Work& work, int first) {
  constexpr int kRows = block_n(C) / C.warps;
  const int begin = first + warp_of_cta() * kRows;
  const score::KeyHead head{work.sequence, work.head_kv};
  score::repair_keys<C.rule, C.head_dim, score::KeySide::k>(params, work, head, C.block_m, begin, begin + kRows);
  score::repair_keys<C.rule, C.head_dim_v, score::KeySide::v>(params, work, head, C.block_m, begin, begin + kRows);
}

/// Computes again those of a block's queries from `first` on whose dQ is not finite.
template <Config C>
__device__ __forceinline__ void repair_queries(const Params& params, const sequence::Sequence& rows, int sequence,
                                               int head, int first) {
  constexpr int kRows = C.block_m / C.warps;
  const int begin = first + warp_of_cta() * kRows;
  score::repair_queries<C.rule, C.head_dim>(params, rows, sequence, head, C.block_m, begin, begin + kRows);
}

}  // namespace strobe::sm80::backward
