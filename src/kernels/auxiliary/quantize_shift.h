// SPDX-License-Identifier: Apache-2.0
// q m, the product of a row of Q and the mean of its keys, which LSE is to be raised by where keys are centred.
#pragma once

#include "kernels/auxiliary/quantize_tile.h"

namespace strobe::auxiliary {

/// Adds this thread's part of q m to the sums that call/eight_bit.h prescribes. `mean`: from its first column on.
/// False where an element is not finite and exact conversions are asked for.
template <QuantizeConfig C, int head_dim, bool exact>
__device__ __forceinline__ bool add_products(const unsigned char* tile, const Slice<TileShape<C, head_dim>>& slice,
                                             const double* mean, double (&phases)[kShiftPhases]) {
  using Shape = TileShape<C, head_dim>;
  unsigned nan = 0;
#pragma unroll(exact ? 1 : 2)
  for (int c = 0; c < Shape::kColumns && slice.has(c); c += kVector<C.source>) {
    const uint4 bits = *reinterpret_cast<const uint4*>(tile + Shape::vector_at(slice.thread, c / kVector<C.source>));
    double x[kVector<C.source>];
    to_doubles<C.source, exact>(bits, x);
    if constexpr (!exact) find_not_finite<C.source>(bits, nan);
#pragma unroll
    for (int i = 0; i < kVector<C.source>; i += 2) {
      const double2 two = reinterpret_cast<const double2*>(mean)[(c + i) / 2];
      phases[i % kShiftPhases] = fma(x[i], two.x, phases[i % kShiftPhases]);
      phases[(i + 1) % kShiftPhases] = fma(x[i + 1], two.y, phases[(i + 1) % kShiftPhases]);
    }
  }
  return is_zero<C.source>(nan);
}

/// q m. It reads the row again, since float64 of all of it would not fit the registers.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ float shift_of(const unsigned char* tile, const Slice<TileShape<C, head_dim>>& slice,
                                          const double* mean) {
  using Shape = TileShape<C, head_dim>;
  const double* const own_mean = mean + spread<C, 8>(slice.index * kSliceColumns);
  double phases[kShiftPhases] = {};
  if (!add_products<C, head_dim, false>(tile, slice, own_mean, phases)) {
#pragma unroll
    for (double& phase : phases) phase = 0.0;
    add_products<C, head_dim, true>(tile, slice, own_mean, phases);
  }
  const double own = (phases[0] + phases[1]) + (phases[2] + phases[3]);
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < Shape::kSlices; ++i) sum += __shfl_sync(0xffffffffU, own, i, Shape::kSlices);
  return static_cast<float>(sum);
}

}  // namespace strobe::auxiliary
