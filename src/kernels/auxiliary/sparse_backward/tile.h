// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit tiles that lie anywhere in memory: copied to shared memory one step ahead of the tensor cores.
#pragma once

#include <cuda/std/cstdint>

#include "kernels/auxiliary/sparse_backward/params.h"
#include "kernels/ptx/async_copy.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/ptx/tensor_core.h"

namespace strobe::auxiliary {

using cuda::std::uint32_t;

constexpr int kChunk = 8;  // elements of 16 bytes

/// Operands of the steps of products that have m rows: one A, and one B for each product of it.
template <int m, int products>
struct SparseTiles {
  alignas(16) unsigned short a[kStages][m * kTileStride];
  alignas(16) unsigned short b[kStages][products][kSparseTile * kTileStride];
};
static_assert(sizeof(SparseTiles<kSparseKeys, 2>) == sparse_tile_bytes(kSparseKeys, 2));

/// Starts copying columns [first, first + 64) of `rows` rows; columns from `columns` on, and rows where row_of(row) is
/// null, become zeros. `anywhere`: an address that may be read, and as aligned as rows are: copies of nothing name one,
/// too.
template <bool aligned, int rows, int threads, class RowOf>
__device__ __forceinline__ void start_tile(unsigned short* tile, int first, int columns, const unsigned short* anywhere,
                                           const RowOf& row_of) {
  constexpr int kChunks = kSparseTile / kChunk;
  const int column = first + static_cast<int>(threadIdx.x) % kChunks * kChunk;
#pragma unroll
  for (int i = 0; i < rows; i += threads / kChunks) {
    const int row = i + static_cast<int>(threadIdx.x) / kChunks;
    if (rows < threads / kChunks && row >= rows) break;
    const unsigned short* const from = row_of(row);
    unsigned short* const to = tile + row * kTileStride + column - first;
    if constexpr (aligned) {
      const bool exists = from != nullptr && column < columns;
      ptx::cp_async_16_alone(static_cast<uint32_t>(__cvta_generic_to_shared(to)), exists ? from + column : anywhere,
                             exists ? 16 : 0);
    } else {
#pragma unroll
      for (int c = 0; c < kChunk; ++c) {
        to[c] = from != nullptr && column + c < columns ? from[column + c] : static_cast<unsigned short>(0);
      }
    }
  }
}

/// How the operands of D = A B lie in their tiles: A [m, k] or [k, m], B [n, k] or [k, n].
struct Operands {
  bool a_by_k, b_by_k;
};

/// Four matrices of 8 x 8: of 16 rows of a tile from `row` on, in its columns from `column` on, and behind these the
/// same of the next 8 columns; or `columns_first`, for each 8 rows both columns'.
template <bool transposed, bool columns_first>
__device__ __forceinline__ void load_matrices(uint32_t (&matrices)[4], uint32_t tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int low = lane / 8 % 2 * 8;
  const int high = lane / 16 * 8;
  row += lane % 8 + (columns_first ? high : low);
  column += columns_first ? low : high;
  const uint32_t address = tile + (row * kTileStride + column) * static_cast<int>(sizeof(unsigned short));
  if constexpr (transposed) {
    ptx::ldmatrix_x4_trans(matrices, address);
  } else {
    ptx::ldmatrix_x4(matrices, address);
  }
}

/// d += A B of a step of 16: this warp's 16 rows of A, and n columns of B.
template <Element element, bool b_by_k, int n>
__device__ __forceinline__ void multiply_step(float (&d)[n / 8][4], const uint32_t (&a)[4],
                                              const unsigned short* b_tile, int k) {
  const auto b_at = static_cast<uint32_t>(__cvta_generic_to_shared(b_tile));
#pragma unroll
  for (int tile = 0; tile < n / 8; tile += 2) {
    uint32_t b[4];
    load_matrices<b_by_k, !b_by_k>(b, b_at, b_by_k ? k : tile * 8, b_by_k ? tile * 8 : k);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* const to = d[tile + i];
      ptx::mma_m16n8k16<element>(to, a, b[2 * i], b[2 * i + 1], to[0], to[1], to[2], to[3]);
    }
  }
}

/// How long the products of one A are: the first the longest.
template <int products>
struct Lengths {
  int of[products];
};

/// d[i] += A B_i over lengths.of[i] elements of k, of which tiles have 64: start(first, a, b) starts to copy all
/// operands from `first` on.
template <Element element, Operands lie, int m, int n, int products, int most, class Start>
__device__ __forceinline__ void multiply(float (*d)[n / 8][4], SparseTiles<m, most>& tiles,
                                         const Lengths<products>& lengths, const Start& start) {
  static_assert(products <= most);
  const int steps = (lengths.of[0] + kSparseTile - 1) / kSparseTile;
  if (steps > 0) {
    start(0, tiles.a[0], tiles.b[0]);
  }
  ptx::cp_async_commit_group();
  const int row = static_cast<int>(threadIdx.x) / 32 * 16;
  for (int step = 0; step < steps; ++step) {
    const int next = (step + 1) % kStages;
    if (step + 1 < steps) {
      start((step + 1) * kSparseTile, tiles.a[next], tiles.b[next]);
    }
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<1>();
    __syncthreads();
    const auto a_at = static_cast<uint32_t>(__cvta_generic_to_shared(tiles.a[step % kStages]));
#pragma unroll
    for (int k = 0; k < kSparseTile; k += 16) {
      if (step * kSparseTile + k >= lengths.of[0]) break;
      uint32_t a[4];
      load_matrices<lie.a_by_k, lie.a_by_k>(a, a_at, lie.a_by_k ? k : row, lie.a_by_k ? row : k);
#pragma unroll
      for (int i = 0; i < products; ++i) {
        if (step * kSparseTile + k < lengths.of[i]) {
          multiply_step<element, lie.b_by_k, n>(d[i], a, tiles.b[step % kStages][i], k);
        }
      }
    }
    __syncthreads();  // before the stage is written again
  }
}

}  // namespace strobe::auxiliary
