// SPDX-License-Identifier: Apache-2.0
// Warps that share rows, each with the scores of some of a block's keys and some columns of O: what they exchange.
#pragma once

#include "kernels/sm80/forward/row_rules.h"
#include "kernels/sm80/forward/smem.h"

namespace strobe::sm80::forward {

/// The rows of one warp, and of those that share them.
template <Config C>
class SharedRows {
 public:
  using Numbers = float[fragments(C)][kRowsPerThread];

  __device__ __forceinline__ SharedRows(int row_warp, int column_warp)
      : column_(column_warp),
        numbers_(reinterpret_cast<float*>(shared_memory() + smem_plan(C).row_numbers) + row_warp * C.rows_per_warp),
        probabilities_(shared_memory() + smem_plan(C).probabilities + row_warp * PTile<C>::kBytes) {}

  /// Numbers of this warp's rows, which all lanes of a quad have, to shared memory.
  __device__ __forceinline__ void share(const Numbers& own) const {
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        if (threadIdx.x % 4 == 0) {
          at(column_, f, r) = own[f][r];
        }
      }
    }
  }

  /// Once all are there: join(x, y) of those of all warps, in their order.
  template <typename Join>
  __device__ __forceinline__ void joined(Numbers& all, const Join& join) const {
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        all[f][r] = at(0, f, r);
#pragma unroll
        for (int column = 1; column < C.column_warps; ++column) {
          all[f][r] = join(all[f][r], at(column, f, r));
        }
      }
    }
  }

  /// The probabilities of step `step` of this warp's keys as operands to where all warps read them.
  __device__ __forceinline__ void store_probabilities(int f, int step, const uint32_t (&p)[4]) const {
    const int pair = column_ * (warp_keys(C) / kStep) + step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned first = PTile<C>::offset(f * kFragmentRows + score::fragment_row(i % kRowsPerThread), i / 2);
      *reinterpret_cast<uint32_t*>(probabilities_ + PTile<C>::pair_after(first, pair) + threadIdx.x % 4 * 4) = p[i];
    }
  }

  /// Those of sixteen keys of the block.
  __device__ __forceinline__ void load_probabilities(uint32_t (&p)[fragments(C)][4], int step) const {
    const uint32_t first = a_operand<PTile<C>>(shared_address(probabilities_), 0);
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      ptx::ldmatrix_x4(p[f], PTile<C>::pair_after(first, step) + f * kFragmentRows * PTile<C>::kRowBytes);
    }
  }

  /// By all threads of the CTA, at the end: sums and largest scores become those of all of the rows' keys.
  __device__ __forceinline__ void finish(Softmax<C> (&softmax)[fragments(C)]) const {
    if constexpr (C.rule.normalized) {
      finish_sums(softmax);
    } else {
      __syncthreads();
    }
  }

  static constexpr auto kAdd = [](float x, float y) { return x + y; };
  static constexpr auto kHigher = [](float x, float y) { return fmaxf(x, y); };

 private:
  __device__ __forceinline__ void finish_sums(Softmax<C> (&softmax)[fragments(C)]) const {
    Numbers numbers;
    for_each_row(softmax, [&](Softmax<C>& rows, int f, int r) { numbers[f][r] = of_quad(rows.sum[r], kAdd); });
    exchange(numbers, kAdd);
    for_each_row(softmax, [&](Softmax<C>& rows, int f, int r) { rows.sum[r] = numbers[f][r]; });
    if constexpr (C.rule.max_logits) {
      for_each_row(softmax, [&](Softmax<C>& rows, int f, int r) { numbers[f][r] = of_quad(rows.top[r], kHigher); });
      exchange(numbers, kHigher);
      for_each_row(softmax, [&](Softmax<C>& rows, int f, int r) { rows.top[r] = numbers[f][r]; });
    }
  }

  __device__ __forceinline__ float& at(int column, int f, int r) const {
    return numbers_[column * block_m(C) + f * kFragmentRows + score::fragment_row(r)];
  }

  template <typename Visit>
  __device__ __forceinline__ static void for_each_row(Softmax<C> (&softmax)[fragments(C)], const Visit& visit) {
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        visit(softmax[f], f, r);
      }
    }
  }

  template <typename Join>
  __device__ __forceinline__ static float of_quad(float x, const Join& join) {
    x = join(x, __shfl_xor_sync(kFullWarp, x, 1));
    return join(x, __shfl_xor_sync(kFullWarp, x, 2));
  }

  template <typename Join>
  __device__ __forceinline__ void exchange(Numbers& numbers, const Join& join) const {
    __syncthreads();
    share(numbers);
    __syncthreads();
    joined(numbers, join);
  }

  int column_;
  float* numbers_;  // of the rows of the first warp, and behind them those of the others
  unsigned char* probabilities_;
};

}  // namespace strobe::sm80::forward
