// SPDX-License-Identifier: Apache-2.0
// The quantiser's rotation of a row whose slices neighbouring threads hold.
#pragma once

#include "kernels/auxiliary/hadamard.h"
#include "kernels/auxiliary/quantize_tile.h"

namespace strobe::auxiliary {

/// Whether a rotation makes each number of a row of all its elements: if one is not finite, none is.
template <int head_dim>
constexpr bool mixes_all() {
  return largest_power(head_dim) == head_dim;
}

/// What rotate() leaves out of its results: a power of two, which joins scales without a change of any bit but those of
/// numbers that are too small to count.
template <int head_dim>
constexpr float later_factor() {
  const float factor = hadamard_factor(head_dim);
  return mixes_all<head_dim>() && factor * factor * head_dim == 1.0F ? factor : 1.0F;
}

/// Whether threads of a rotated row exchange halves of their slices, rather than all of them.
template <int head_dim>
constexpr bool exchanges() {
  return mixes_all<head_dim>() && head_dim > kSliceColumns;
}

/// The columns of the numbers that rotate() leaves in a thread.
template <int head_dim>
__device__ __forceinline__ Halves halves_of(bool rotated, int slice) {
  if (!exchanges<head_dim>() || !rotated) return Halves::in_order(slice);
  const bool odd = (slice & 1) != 0;
  const bool differences = (slice & 2) != 0;  // of the first exchange of two
  const int first = slice * kHalfSlice;
  const bool negated = head_dim == 2 * kSliceColumns ? odd : differences && !odd;
  return {{first, head_dim / 2 + first}, {differences && odd, negated}};
}

/// Rotates slices that lanes exchange halves of, whose odd ones are swapped; the bits of the largest magnitude.
template <int head_dim>
__device__ __forceinline__ unsigned rotate_exchanged(float* x, int slice) {
  swapped_butterflies<kHalfSlice>(x, (slice & 1) != 0);
  if constexpr (head_dim == 4 * kSliceColumns) {
    exchange_butterflies<kHalfSlice>(x, 1, (slice & 2) != 0 ? -1.0F : 1.0F);
  }
  const unsigned largest = last_exchange_butterflies<kHalfSlice>(x, head_dim / kSliceColumns / 2);
  if constexpr (later_factor<head_dim>() != 1.0F) return largest;
  constexpr float kFactor = hadamard_factor(head_dim);
#pragma unroll
  for (int c = 0; c < kSliceColumns; ++c) x[c] *= kFactor;
  return __float_as_uint(__uint_as_float(largest) * kFactor);
}

/// Rotates slices of rows that are cut into powers of two.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ void rotate_parts(float (&x)[TileShape<C, head_dim>::kColumns],
                                             const Slice<TileShape<C, head_dim>>& slice) {
  using Shape = TileShape<C, head_dim>;
  if constexpr (Shape::kSlices == 1) {
    hadamard_transform<Shape::kColumns>(x);
  } else {
    constexpr bool kPart = Shape::kLastColumns != kSliceColumns;  // the last slice is one
    const bool is_part = kPart && slice.index == Shape::kLastSlice;
    if (is_part) {
      hadamard_transform<Shape::kLastColumns>(x);
    } else {
      butterflies<kSliceColumns>(x);
    }
    constexpr int kBlock = largest_power(head_dim);  // of the first columns: 64 or 128
    const bool is_first = slice.index < kBlock / kSliceColumns;
    if constexpr (kBlock == 2 * kSliceColumns) lane_butterflies<kSliceColumns>(x, 1, is_first, (slice.index & 1) != 0);
    const float factor = is_part ? 1.0F : hadamard_factor(is_first ? kBlock : kSliceColumns);
#pragma unroll
    for (float& element : x) element *= factor;
  }
}

template <int count>
__device__ __forceinline__ unsigned largest_magnitude(const float (&x)[count]) {
  float largest = 0.0F;
#pragma unroll
  for (const float element : x) largest = fmaxf(largest, fabsf(element));
  return __float_as_uint(largest);
}

/// Rotates a thread's numbers but for later_factor(); the bits of their largest magnitude.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ unsigned rotate(float (&x)[TileShape<C, head_dim>::kColumns],
                                           const Slice<TileShape<C, head_dim>>& slice) {
  constexpr int kColumns = TileShape<C, head_dim>::kColumns;
  if constexpr (exchanges<head_dim>()) {
    return rotate_exchanged<head_dim>(x, slice.index);
  } else if constexpr (later_factor<head_dim>() != 1.0F) {
    butterflies<kColumns / 2>(x);
    butterflies<kColumns / 2>(x + kColumns / 2);
    return last_butterflies<kColumns / 2>(x);
  } else {
    rotate_parts<C, head_dim>(x, slice);
    return largest_magnitude(x);
  }
}

}  // namespace strobe::auxiliary
