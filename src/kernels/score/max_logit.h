// SPDX-License-Identifier: Apache-2.0
// max_logits: the largest score of a sequence's head, which the rows of all its tiles join.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/apply.h"

namespace strobe {

/// A row's largest score joins its head's. Floats order as integers do, negative ones the other way round. `C` is the
/// Config of a forward of any family, whose head_of() says which head a row of the tile belongs to.
template <auto C, typename Params, typename TileWork>
__device__ __forceinline__ void store_max_logit(const Params& params, const TileWork& work, int row, float score) {
  if (score != kMinusInfinity) {
    const float logit = score * score::remaining_scale<C.rule>(params.score) * kLn2;
    float* largest = params.max_logits.of(work.tile.sequence, head_of<C>(work, row));
    if (__float_as_int(logit) >= 0) {
      atomicMax(reinterpret_cast<int*>(largest), __float_as_int(logit));
    } else {
      atomicMin(reinterpret_cast<unsigned*>(largest), __float_as_uint(logit));
    }
  }
}

}  // namespace strobe
