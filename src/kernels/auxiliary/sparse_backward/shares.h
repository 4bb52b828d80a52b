// SPDX-License-Identifier: Apache-2.0
// What a unit adds to the gradients of its keys: scale dS^T Q and P^T dO, of a tile of keys and one of columns, summed
// over its heads. Where V is part of K, one row has both.
#pragma once

#include "kernels/auxiliary/sparse_backward/tile.h"
#include "kernels/auxiliary/sparse_backward/unit.h"

namespace strobe::auxiliary {

/// Grid: units * tiles of keys, tiles of columns: those of K, and those of V where it lies apart.
template <SparseBackwardConfig C>
__global__ void __launch_bounds__(sparse_threads(kSparseKeys))
    sparse_shares(const __grid_constant__ SparseBackwardParams params) {
  extern __shared__ unsigned char shared[];
  auto& tiles = *reinterpret_cast<SparseTiles<kSparseKeys, 1>*>(shared);
  constexpr int kThreads = sparse_threads(kSparseKeys);
  const SparseRows& source = params.sources[params.source];
  const auto [unit, first_key, keys] = SparseUnitKeys::of(params, source, static_cast<int>(blockIdx.x));
  if (keys <= 0) return;

  const int tiles_of_k = (params.head_dim + kSparseTile - 1) / kSparseTile;
  const bool of_v = static_cast<int>(blockIdx.y) >= tiles_of_k;
  const int first_column = (static_cast<int>(blockIdx.y) - (of_v ? tiles_of_k : 0)) * kSparseTile;
  float d[1][kSparseTile / 8][4] = {};
  const auto multiply_heads = [&](unsigned short* weights, const Rows& rows, int columns) {
    const int padded = weight_heads(params.group);
    multiply<C.element, Operands{.a_by_k = false, .b_by_k = true}, kSparseKeys, kSparseTile>(
        d, tiles, Lengths<1>{padded}, [&](int first, unsigned short* a, auto& b) {
          start_tile<true, kSparseKeys, kThreads>(a, first, padded, params.ds, [&](int key) {
            return key < keys ? unit.weights(weights, source, first_key + key) : nullptr;
          });
          start_tile<C.aligned, kSparseTile, kThreads>(b[0], first_column, columns, params.q.data,
                                                       [&](int head) { return unit.head_row(rows, first + head); });
        });
  };
  if (!of_v) {
    multiply_heads(params.ds, params.q, params.head_dim);
#pragma unroll
    for (auto& tile : d[0]) {
#pragma unroll
      for (float& x : tile) x *= params.scale;
    }
  }
  if (of_v || (!source.v_apart && first_column < params.head_dim_v)) {
    multiply_heads(params.p, params.d_o, params.head_dim_v);
  }

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int key = first_key + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const int columns = float_columns(of_v ? params.head_dim_v : params.head_dim);
  float* const shares =
      source.shares + unit.number * source.width * source.columns + (of_v ? source.first_v_column : 0);
#pragma unroll
  for (int tile = 0; tile < kSparseTile / 8; ++tile) {
    const int column = first_column + tile * 8 + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (key + half * 8 < first_key + keys && column < columns) {
        float* const to = shares + static_cast<long long>(key + half * 8) * source.columns + column;
        *reinterpret_cast<float2*>(to) = make_float2(d[0][tile][2 * half], d[0][tile][2 * half + 1]);
      }
    }
  }
}

}  // namespace strobe::auxiliary
