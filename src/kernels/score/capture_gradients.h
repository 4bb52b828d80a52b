// SPDX-License-Identifier: Apache-2.0
// The gradients of captures: for each read of a text, the gradient of the score after it times the read's derivative,
// added to the element that was read. What a warp adds to one element is summed first, by what the read's indices
// depend on: for a head or a diagonal in registers, over all fragments until finish(); for a query or a key over each
// fragment. Compiled with the code of a text alone, which comes before this header.
#pragma once

#include "kernels/expression/element.h"
#include "kernels/score/capture_sums.h"
#include "kernels/score/capture_terms.h"
#include "kernels/score/fragment.h"

namespace strobe::score {

/// The pair of score i of a thread, in a fragment whose rows are keys and whose columns are queries.
__device__ __forceinline__ expression::Position fragment_pair(expression::Position first, int i) {
  first.q += i / 4 * 8 + i % 2;
  first.k += 8 * (i / 2 % kRowsPerThread);
  return first;
}

/// Of one read what for_each_read() says: visit(place, derivative).
template <int read, typename Visit>
struct ReadVisitor {
  const Visit& visit;

  template <int number, int capture>
  __device__ __forceinline__ void operator()(const expression::Place& place, float derivative) const {
    if constexpr (number == read) {
      visit(place, derivative);
    }
  }
};

/// By a whole warp: each lane that `adds` adds `sum` to element `index`. Where that is one element for all of them, the
/// warp adds once, as atomics to one address wait for each other.
template <bool exact>
__device__ __forceinline__ void add_by_warp(void* gradient, bool adds, long long index, float sum) {
  const unsigned adding = __ballot_sync(kFullWarp, adds);
  if (adding == 0) {
    return;
  }
  const long long first = __shfl_sync(kFullWarp, index, __ffs(static_cast<int>(adding)) - 1);
  if (!__all_sync(kFullWarp, !adds || index == first)) {
    if (adds) {
      add_term<exact>(gradient, index, sum);
    }
    return;
  }
  sum = adds ? sum : 0.0F;
#pragma unroll
  for (int distance = 1; distance < kThreadsPerWarp; distance *= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, distance);
  }
  if (threadIdx.x % kThreadsPerWarp == 0) {
    add_term<exact>(gradient, first, sum);
  }
}

/// A warp's fragments, 16 keys by 2 n queries each, of one head and along one diagonal. `exact`: gradients are exact
/// sums (capture_terms.h).
template <int n, bool exact>
class CaptureGradients {
 public:
  using Scores = float[n];

  /// `memory`: the warp's diagonal_floats(2 n) in shared memory.
  __device__ __forceinline__ CaptureGradients(const expression::Captures& captures,
                                              const expression::Captures& gradients, float* memory)
      : captures_(captures), gradients_(gradients), memory_(memory) {}

  /// `first`: the pair of this thread's first score. `ds`: of the scores after the text, 0 of pairs that are hidden or
  /// do not exist. `before`: the scores before it.
  __device__ __forceinline__ void add(const expression::Position& first, const Scores& ds, const Scores& before) {
    add_from<0>(first, ds, before);
  }

  /// Adds what was summed to the gradients. `first`: of any fragment.
  __device__ __forceinline__ void finish(const expression::Position& first) {
    finish_from<0>(first);
#pragma unroll
    for (float& sum : sums_) {
      sum = 0.0F;
    }
  }

 private:
  using Pattern = expression::Pattern;

  static constexpr int kDiagonals = thread_diagonals(2 * n);
  static constexpr int kMostSums = 2 * kDiagonals + 4;  // that stay in registers

  /// Sums of a thread for a read.
  __device__ __forceinline__ static constexpr int sums_of(int read) {
    const Pattern pattern = expression::pattern_of_read(read);
    return pattern == Pattern::head ? 1 : pattern == Pattern::diagonal ? kDiagonals : 0;
  }
  __device__ __forceinline__ static constexpr int sums_before(int read) {
    int sums = 0;
    for (int before = 0; before < read; ++before) {
      sums += sums_of(before);
    }
    return sums;
  }
  /// Whether the sums of a read wait for finish(); else they are added after each fragment.
  __device__ __forceinline__ static constexpr bool waits(int read) { return sums_before(read + 1) <= kMostSums; }

  template <int read>
  __device__ __forceinline__ void* gradient() const {
    return const_cast<void*>(gradients_.of[expression::capture_of_read(read)].data);
  }

  template <int read>
  __device__ __forceinline__ void add_from(const expression::Position& first, const Scores& ds, const Scores& before) {
    if constexpr (read < expression::kReads) {
      if (gradient<read>() != nullptr) {
        add_read<read>(first, ds, before);
      }
      add_from<read + 1>(first, ds, before);
    }
  }

  template <int read>
  __device__ __forceinline__ void finish_from(const expression::Position& first) {
    if constexpr (read < expression::kReads) {
      if constexpr (sums_of(read) > 0 && waits(read)) {
        if (gradient<read>() != nullptr) {
          finish_read<read>(first, sums_ + sums_before(read));
        }
      }
      finish_from<read + 1>(first);
    }
  }

  template <int read>
  __device__ __forceinline__ void add_read(const expression::Position& first, const Scores& ds, const Scores& before) {
    constexpr Pattern kPattern = expression::pattern_of_read(read);
    if constexpr (kPattern == Pattern::head || kPattern == Pattern::diagonal) {
      if constexpr (waits(read)) {
        sum_read<read>(first, ds, before, sums_ + sums_before(read));
      } else {
        float sums[sums_of(read)] = {};
        sum_read<read>(first, ds, before, sums);
        finish_read<read>(first, sums);
      }
    } else if constexpr (kPattern == Pattern::key) {
      add_keys<read>(first, ds, before);
    } else if constexpr (kPattern == Pattern::query) {
      add_queries<read>(first, ds, before);
    } else {
      add_pairs<read>(first, ds, before);
    }
  }

  template <int read, typename Visit>
  __device__ __forceinline__ void look_at(const expression::Position& pair, float before, const Visit& visit) const {
    for_each_read(captures_, gradients_, pair, before, ReadVisitor<read, Visit>{visit});
  }

  /// By a whole warp.
  template <int read>
  __device__ __forceinline__ void add_at(const expression::Position& pair, bool adds, float sum) const {
    expression::Place at{};
    adds = adds && sum != 0.0F;
    if (adds) {
      look_at<read>(pair, 0.0F, [&](const expression::Place& place, float) { at = place; });
    }
    add_by_warp<exact>(gradient<read>(), adds && at.inside, at.index, sum);
  }

  template <int read>
  __device__ __forceinline__ float term(const expression::Position& first, const Scores& ds, const Scores& before,
                                        int i) const {
    float of = 0.0F;
    if (ds[i] != 0.0F) {
      look_at<read>(fragment_pair(first, i), before[i],
                    [&](const expression::Place&, float derivative) { of = ds[i] * derivative; });
    }
    return of;
  }

  /// Of every eight columns a thread has two scores in each of two rows, eight apart: of neighbouring eights one row's
  /// lie on the other row's diagonals.
  __device__ __forceinline__ static constexpr int diagonal_of(int i) {
    return 2 * (i / 2 % kRowsPerThread + n / 4 - 1 - i / 4) + i % 2;
  }

  template <int read>
  __device__ __forceinline__ void sum_read(const expression::Position& first, const Scores& ds, const Scores& before,
                                           float* sums) const {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      sums[expression::pattern_of_read(read) == Pattern::head ? 0 : diagonal_of(i)] += term<read>(first, ds, before, i);
    }
  }

  template <int read>
  __device__ __forceinline__ void finish_read(const expression::Position& first, const float* sums) const {
    if constexpr (expression::pattern_of_read(read) == Pattern::head) {
      float sum = sums[0];
#pragma unroll
      for (int distance = 1; distance < kThreadsPerWarp; distance *= 2) {
        sum += __shfl_xor_sync(kFullWarp, sum, distance);
      }
      add_at<read>(first, threadIdx.x % kThreadsPerWarp == 0, sum);
    } else {
      finish_diagonals<read>(first, sums);
    }
  }

  /// By way of shared memory, where each lane sums what all lanes have of a diagonal, in the same order every time.
  template <int read>
  __device__ __forceinline__ void finish_diagonals(const expression::Position& first, const float* sums) const {
    constexpr int kColumns = 2 * n;
    constexpr int kRows = 16;
    const int lane = static_cast<int>(threadIdx.x % kThreadsPerWarp);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kDiagonals; ++i) {
      memory_[i * kThreadsPerWarp + lane] = sums[i];
    }
    __syncwarp();
#pragma unroll 1
    for (int from = 1 - kColumns; from < kRows; from += kThreadsPerWarp) {
      const int ahead = from + lane;  // rows ahead of columns
      float sum = 0.0F;
#pragma unroll
      for (int column = 0; column < 8; ++column) {  // of a lane's first eight, row by row
        const int row = ahead + column;
        const int eight = (row >> 3) + n / 4 - 1;
        if (eight >= 0 && 2 * eight < kDiagonals && ahead < kRows) {
          sum += memory_[(2 * eight + column % 2) * kThreadsPerWarp + (row & 7) * 4 + column / 2];
        }
      }
      const int first_row = max(ahead, 0);
      expression::Position pair = first;
      pair.k += first_row - fragment_row(0);
      pair.q += first_row - ahead - fragment_column();
      add_at<read>(pair, ahead < kRows, sum);
    }
  }

  template <int read>
  __device__ __forceinline__ void add_keys(const expression::Position& first, const Scores& ds,
                                           const Scores& before) const {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < n / 2; ++i) {
        sum += term<read>(first, ds, before, i / 2 * 4 + 2 * r + i % 2);
      }
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      add_at<read>(fragment_pair(first, 2 * r), threadIdx.x % 4 == 0, sum);
    }
  }

  /// Eight lanes have parts of the sums of the same `left` columns. Each exchanges half of what it has with three of
  /// them in turn, and keeps an eighth of the columns, from number `own` on; of fewer than eight one lane `adds` a
  /// column.
  template <int left, int distance>
  __device__ __forceinline__ static void share_columns(float* sums, int& own, bool& adds) {
    if constexpr (distance < kThreadsPerWarp) {
      const bool upper = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
      if constexpr (left == 1) {
        sums[0] += __shfl_xor_sync(kFullWarp, sums[0], distance);
        adds = adds && !upper;
        share_columns<1, 2 * distance>(sums, own, adds);
      } else {
        constexpr int kHalf = left / 2;
        own += upper ? kHalf : 0;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const float given = upper ? sums[i] : sums[i + kHalf];
          sums[i] = (upper ? sums[i + kHalf] : sums[i]) + __shfl_xor_sync(kFullWarp, given, distance);
        }
        share_columns<kHalf, 2 * distance>(sums, own, adds);
      }
    }
  }

  template <int read>
  __device__ __forceinline__ void add_queries(const expression::Position& first, const Scores& ds,
                                              const Scores& before) const {
    float sums[n / 2];
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const int score = i / 2 * 4 + i % 2;
      sums[i] = term<read>(first, ds, before, score) + term<read>(first, ds, before, score + 2);
    }
    int own = 0;
    bool adds = true;
    share_columns<n / 2, 4>(sums, own, adds);
#pragma unroll
    for (int i = 0; i < (n < 16 ? 1 : n / 16); ++i) {
      expression::Position pair = first;
      pair.q += (own + i) / 2 * 8 + (own + i) % 2;
      add_at<read>(pair, adds, sums[i]);
    }
  }

  template <int read>
  __device__ __forceinline__ void add_pairs(const expression::Position& first, const Scores& ds,
                                            const Scores& before) const {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (ds[i] != 0.0F) {
        look_at<read>(fragment_pair(first, i), before[i], [&](const expression::Place& place, float derivative) {
          if (place.inside) {
            add_term<exact>(gradient<read>(), place.index, ds[i] * derivative);
          }
        });
      }
    }
  }

  const expression::Captures& captures_;
  const expression::Captures& gradients_;
  float* const memory_;
  float sums_[kMostSums] = {};
};

}  // namespace strobe::score
