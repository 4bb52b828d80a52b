// SPDX-License-Identifier: Apache-2.0
// Running sums of numbers in shared memory, by one warp.
#pragma once

namespace strobe {

inline constexpr int kSumWarp = 32;
inline constexpr unsigned kSumLanes = 0xffffffffU;

/// Sums of what is before each number, in its place, and of all behind the last one. By a warp.
__device__ __forceinline__ void make_prefix_sums(int* numbers, int count) {
  const int lane = threadIdx.x;
  int before = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += kSumWarp) {
    const int index = first + lane;
    const int own = index < count ? numbers[index] : 0;
    int sum = own;
#pragma unroll
    for (int distance = 1; distance < kSumWarp; distance *= 2) {
      const int other = __shfl_up_sync(kSumLanes, sum, distance);
      sum += lane >= distance ? other : 0;
    }
    if (index < count) {
      numbers[index] = before + sum - own;
    }
    before += __shfl_sync(kSumLanes, sum, kSumWarp - 1);
  }
  if (lane == 0) {
    numbers[count] = before;
  }
}

}  // namespace strobe
