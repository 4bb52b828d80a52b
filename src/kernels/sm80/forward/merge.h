// SPDX-License-Identifier: Apache-2.0
// Groups of warps that had the same rows and different keys: their results become one, in the order of the groups.
#pragma once

#include "kernels/sm80/forward/row_rules.h"
#include "kernels/sm80/forward/smem.h"

namespace strobe::sm80::forward {

/// What a thread of some group knows of one of its rows.
template <Config C>
struct MergedRows {
  static constexpr int kRows = fragments(C) * kRowsPerThread;

  /// A number of row `row` of this thread: `what` 0 is its maximum, 1 its sum, 2 its largest score.
  __device__ __forceinline__ static float& at(int group, int what, int row) {
    float* const maxima = reinterpret_cast<float*>(shared_memory() + smem_plan(C).maxima);
    return maxima[((group * 3 + what) * kRows + row) * threads_per_group(C) + threadIdx.x % threads_per_group(C)];
  }

  /// A register of O of any group but the first.
  __device__ __forceinline__ static float& sum(int group, int f, int i) {
    float* const sums = reinterpret_cast<float*>(shared_memory() + smem_plan(C).sums);
    const int registers = (group - 1) * fragments(C) + f;
    return sums[(registers * (C.head_dim_v / 2) + i) * threads_per_group(C) + threadIdx.x % threads_per_group(C)];
  }
};

/// A group's maxima, sums and largest scores to shared memory, where the others read them.
template <Config C>
__device__ __forceinline__ void share_rows(const Softmax<C> (&softmax)[fragments(C)], int group) {
  using Merged = MergedRows<C>;
#pragma unroll
  for (int i = 0; i < Merged::kRows; ++i) {
    const Softmax<C>& own = softmax[i / kRowsPerThread];
    Merged::at(group, 0, i) = own.max_log2[i % kRowsPerThread];
    Merged::at(group, 1, i) = own.sum[i % kRowsPerThread];
    if constexpr (C.rule.max_logits) {
      float top = own.top[i % kRowsPerThread];
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
      Merged::at(group, 2, i) = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
    }
  }
}

/// Row i of this thread: its maximum and sum become those of all groups, and the group's O relative to that maximum. Of
/// all groups but the first, O goes to shared memory.
template <Config C>
__device__ __forceinline__ void rescale_row(int i, float (&o)[C.head_dim_v / 2], Softmax<C>& softmax, int group) {
  using Merged = MergedRows<C>;
  const int f = i / kRowsPerThread;
  const int r = i % kRowsPerThread;
  float highest = kMinusInfinity;
#pragma unroll
  for (int g = 0; g < C.key_groups; ++g) {
    highest = fmaxf(highest, Merged::at(g, 0, i));
    if constexpr (C.rule.max_logits) {
      softmax.top[r] = fmaxf(softmax.top[r], Merged::at(g, 2, i));
    }
  }
  float sum = 0.0F;
#pragma unroll
  for (int g = 0; g < C.key_groups; ++g) {
    const float of_group = Merged::at(g, 1, i);
    sum += of_group == 0.0F ? 0.0F : of_group * ptx::ex2_approx(Merged::at(g, 0, i) - highest);
  }
  const bool saw = softmax.sum[r] != 0.0F;
  const float factor = ptx::ex2_approx(softmax.max_log2[r] - highest);
#pragma unroll
  for (int j = 0; j < C.head_dim_v / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& x = o[4 * j + 2 * r + c];
      x = saw ? x * factor : 0.0F;
      if (group != 0) {
        Merged::sum(group, f, 4 * j + 2 * r + c) = x;
      }
    }
  }
  softmax.max_log2[r] = highest;
  softmax.sum[r] = sum;
}

/// The first group's O becomes the sum of all groups'.
template <Config C>
__device__ __forceinline__ void add_groups(float (&o)[fragments(C)][C.head_dim_v / 2]) {
#pragma unroll
  for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) {
#pragma unroll
      for (int g = 1; g < C.key_groups; ++g) {
        o[f][i] += MergedRows<C>::sum(g, f, i);
      }
    }
  }
}

/// By all threads of the CTA, when they need no more keys: O and the softmax of the first group become those of all.
/// Where a group's rows saw no key its O is not looked at: it may be NaN.
template <Config C>
__device__ __forceinline__ void merge_groups(float (&o)[fragments(C)][C.head_dim_v / 2],
                                             Softmax<C> (&softmax)[fragments(C)], int group) {
  ptx::cp_async_wait_all();
  __syncthreads();
#pragma unroll
  for (int f = 0; f < fragments(C); ++f) {
    softmax[f].finish();
  }
  share_rows<C>(softmax, group);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < MergedRows<C>::kRows; ++i) {
    rescale_row<C>(i, o[i / kRowsPerThread], softmax[i / kRowsPerThread], group);
  }
  __syncthreads();
  if (group == 0) {
    add_groups<C>(o);
  }
}

}  // namespace strobe::sm80::forward
