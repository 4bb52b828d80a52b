// SPDX-License-Identifier: Apache-2.0
// Where a thread's accumulator registers lie in the tile of its warp: the same for WGMMA and for mma.sync.
//
// Thread t of a warp holds rows t / 4 and t / 4 + 8 of the warp's sixteen; of every eight columns it holds 2 (t % 4)
// and the next. Register 4 j + 2 r + c is row r (0, 1), column 8 j + 2 (t % 4) + c.
#pragma once

#include "kernels/math/element.h"

namespace strobe::score {

constexpr int kThreadsPerWarp = 32;
constexpr int kRowsPerThread = 2;
constexpr int kRowsPerFragment = 16;
constexpr unsigned kFullWarp = 0xffffffffU;

/// Row r of this thread within its warp's 16.
__device__ __forceinline__ int fragment_row(int r) { return threadIdx.x % kThreadsPerWarp / 4 + 8 * r; }

/// First column of this thread within every eight.
__device__ __forceinline__ int fragment_column() { return 2 * (threadIdx.x % 4); }

// Accumulators of float32's products with rows of V, dO, Q or K (sm80/tile/split_gemm.h) lie otherwise: of every 32
// columns a thread holds 8 neighbours in two fours, four accumulators having one of each four.

constexpr int kWideRegisters = 8;  // for a four in both rows

/// The first column of the j-th four neighbours that this thread holds of a row.
__device__ __forceinline__ int wide_column(int j) { return j / 2 * 32 + threadIdx.x % 4 * 8 + j % 2 * 4; }

/// The register of the i-th of them, in row r.
constexpr int wide_register(int j, int r, int i) { return 4 * (j / 2 * 4 + i) + 2 * r + j % 2; }

// Accumulators of products with rows of V in 8 bits (sm80/tile/stored_gemm.h): of every 16 columns a thread holds four
// neighbours, those with even numbers in one accumulator of eight columns and the others in the next.

/// The first column of the j-th four.
__device__ __forceinline__ int four_column(int j) { return j * 16 + threadIdx.x % 4 * 4; }

/// The register of the i-th of them, in row r.
constexpr int four_register(int j, int r, int i) { return 8 * j + 4 * (i % 2) + 2 * r + i / 2; }

// A word has a bit for each of a thread's columns of a row, of which there are two in every eight.
constexpr int kColumnsPerWord = 128;

/// The bits of the first `columns` columns from this thread's first one on, none where that is negative.
__device__ __forceinline__ unsigned first_columns(int columns) {
  const int count = max(columns, 0) / 8 * 2 + min(max(columns, 0) % 8, 2);
  return count < 32 ? (1U << count) - 1U : ~0U;
}

/// Whether the bit of a column is set, relative to this thread's first one.
__device__ __forceinline__ bool has_column(unsigned word, int column) {
  return (word >> (column % kColumnsPerWord / 8 * 2 + column % 8) & 1U) != 0;
}

/// A number that is the same in all lanes, for the compiler to keep in a uniform register.
__device__ __forceinline__ unsigned uniform(unsigned x) { return __reduce_max_sync(kFullWarp, x); }

/// visit(score, r, column) for each of this thread's scores: its row r (0, 1), and its column less fragment_column().
template <int n, typename Visit>
__device__ __forceinline__ void for_each_score(float (&s)[n], const Visit& visit) {
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
    for (int j = 0; j < n / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        visit(s[4 * j + 2 * r + c], r, 8 * j + c);
      }
    }
  }
}

/// Probabilities become A operands where they are: the accumulator's layout is the operand's, two columns a register.
/// Sixteen columns of them, from register 8 step on.
template <Element element, int n>
__device__ __forceinline__ void to_operand(unsigned (&p)[4], const float (&s)[n], int step) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    p[i] = pack<element>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
  }
}

/// All of them.
template <Element element, int n>
__device__ __forceinline__ void to_operand(unsigned (&p)[n / 8][4], const float (&s)[n]) {
#pragma unroll
  for (int step = 0; step < n / 8; ++step) {
    to_operand<element>(p[step], s, step);
  }
}

/// A number of each of a thread's rows.
struct RowNumbers {
  float row[kRowsPerThread] = {};
};

}  // namespace strobe::score
