// SPDX-License-Identifier: Apache-2.0
// The gradients of captures: for each read of a text, the gradient of the score after it times the read's derivative,
// added to the element that was read. What a fragment adds to one element is summed first, by what the read's indices
// depend on. Compiled with the code of a text alone, which comes before this header.
#pragma once

#include "kernels/expression/element.h"
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

/// Floats of shared memory that a warp needs, for fragments of n scores a thread.
template <int n>
constexpr int kDiagonalPitch = 2 * n + 8;  // of a row, for stores without conflicts
template <int n>
constexpr int kDiagonalFloats = 16 * kDiagonalPitch<n>;

/// A warp's fragment: 16 keys by 2 n queries.
template <int n>
class CaptureGradients {
 public:
  using Scores = float[n];

  /// `first`: the pair of this thread's first score. `diagonals`: the warp's kDiagonalFloats in shared memory.
  __device__ __forceinline__ CaptureGradients(const expression::Captures& captures,
                                              const expression::Captures& gradients, const expression::Position& first,
                                              float* diagonals)
      : captures_(captures), gradients_(gradients), first_(first), diagonals_(diagonals) {}

  /// `ds`: of the scores after the text, 0 of pairs that are hidden or do not exist. `before`: the scores before it.
  __device__ __forceinline__ void add(const Scores& ds, const Scores& before) const { add_from<0>(ds, before); }

 private:
  template <int read>
  __device__ __forceinline__ void add_from(const Scores& ds, const Scores& before) const {
    if constexpr (read < expression::kReads) {
      float* const to = static_cast<float*>(const_cast<void*>(gradients_.of[expression::capture_of_read(read)].data));
      if (to != nullptr) {
        add_read<read>(ds, before, to);
      }
      add_from<read + 1>(ds, before);
    }
  }

  template <int read, typename Visit>
  __device__ __forceinline__ void look_at(const expression::Position& pair, float before, const Visit& visit) const {
    for_each_read(captures_, gradients_, pair, before, ReadVisitor<read, Visit>{visit});
  }

  template <int read>
  __device__ __forceinline__ void add_at(const expression::Position& pair, float* to, float sum) const {
    if (sum != 0.0F) {
      look_at<read>(pair, 0.0F, [&](const expression::Place& place, float) {
        if (place.inside) {
          atomicAdd(to + place.index, sum);
        }
      });
    }
  }

  template <int read>
  __device__ __forceinline__ float term(const Scores& ds, const Scores& before, int i) const {
    float of = 0.0F;
    if (ds[i] != 0.0F) {
      look_at<read>(fragment_pair(first_, i), before[i],
                    [&](const expression::Place&, float derivative) { of = ds[i] * derivative; });
    }
    return of;
  }

  template <int read>
  __device__ __forceinline__ void add_read(const Scores& ds, const Scores& before, float* to) const {
    using expression::Pattern;
    constexpr Pattern kPattern = expression::pattern_of_read(read);
    if constexpr (kPattern == Pattern::head) {
      add_head<read>(ds, before, to);
    } else if constexpr (kPattern == Pattern::key) {
      add_keys<read>(ds, before, to);
    } else if constexpr (kPattern == Pattern::query) {
      add_queries<read>(ds, before, to);
    } else if constexpr (kPattern == Pattern::diagonal) {
      add_diagonals<read>(ds, before, to);
    } else {
      add_pairs<read>(ds, before, to);
    }
  }

  template <int read>
  __device__ __forceinline__ void add_head(const Scores& ds, const Scores& before, float* to) const {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      sum += term<read>(ds, before, i);
    }
#pragma unroll
    for (int distance = 1; distance < kThreadsPerWarp; distance *= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, distance);
    }
    if (threadIdx.x % kThreadsPerWarp == 0) {
      add_at<read>(first_, to, sum);
    }
  }

  template <int read>
  __device__ __forceinline__ void add_keys(const Scores& ds, const Scores& before, float* to) const {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < n / 2; ++i) {
        sum += term<read>(ds, before, i / 2 * 4 + 2 * r + i % 2);
      }
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      if (threadIdx.x % 4 == 0) {
        add_at<read>(fragment_pair(first_, 2 * r), to, sum);
      }
    }
  }

  template <int read>
  __device__ __forceinline__ void add_queries(const Scores& ds, const Scores& before, float* to) const {
#pragma unroll
    for (int i = 0; i < n; i += i % 4 == 1 ? 3 : 1) {
      float sum = term<read>(ds, before, i) + term<read>(ds, before, i + 2);
#pragma unroll
      for (int distance = 4; distance < kThreadsPerWarp; distance *= 2) {
        sum += __shfl_xor_sync(kFullWarp, sum, distance);
      }
      if (threadIdx.x % kThreadsPerWarp < 4) {
        add_at<read>(fragment_pair(first_, i), to, sum);
      }
    }
  }

  /// By way of shared memory, where each lane sums diagonals of the whole fragment.
  template <int read>
  __device__ __forceinline__ void add_diagonals(const Scores& ds, const Scores& before, float* to) const {
    constexpr int kColumns = 2 * n;
    constexpr int kRows = 16;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int row = fragment_row(i / 2 % kRowsPerThread);
      const int column = i / 4 * 8 + fragment_column() + i % 2;
      diagonals_[row * kDiagonalPitch<n> + column] = term<read>(ds, before, i);
    }
    __syncwarp();
#pragma unroll 1
    for (int d = threadIdx.x % kThreadsPerWarp; d < kRows + kColumns - 1; d += kThreadsPerWarp) {
      const int ahead = d - (kColumns - 1);  // rows ahead of columns
      const int first_row = max(ahead, 0);
      float sum = 0.0F;
      for (int row = first_row; row < min(kRows, kColumns + ahead); ++row) {
        sum += diagonals_[row * kDiagonalPitch<n> + row - ahead];
      }
      expression::Position pair = first_;
      pair.k += first_row - fragment_row(0);
      pair.q += first_row - ahead - fragment_column();
      add_at<read>(pair, to, sum);
    }
  }

  template <int read>
  __device__ __forceinline__ void add_pairs(const Scores& ds, const Scores& before, float* to) const {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (ds[i] != 0.0F) {
        look_at<read>(fragment_pair(first_, i), before[i], [&](const expression::Place& place, float derivative) {
          if (place.inside) {
            atomicAdd(to + place.index, ds[i] * derivative);
          }
        });
      }
    }
  }

  const expression::Captures& captures_;
  const expression::Captures& gradients_;
  const expression::Position& first_;
  float* const diagonals_;
};

}  // namespace strobe::score
