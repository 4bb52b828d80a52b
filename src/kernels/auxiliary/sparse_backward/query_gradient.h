// SPDX-License-Identifier: Apache-2.0
// dQ of sparse attention: dQ^T = scale K^T dS over the keys of a unit's lists, for 64 columns and a block of heads.
#pragma once

#include "kernels/auxiliary/sparse_backward/tile.h"
#include "kernels/auxiliary/sparse_backward/unit.h"

namespace strobe::auxiliary {

/// Grid: units * tiles of columns, blocks of heads.
template <SparseBackwardConfig C>
__global__ void __launch_bounds__(sparse_threads(kSparseTile))
    sparse_query_gradient(const __grid_constant__ SparseBackwardParams params) {
  extern __shared__ unsigned char shared[];
  auto& tiles = *reinterpret_cast<SparseTiles<kSparseTile, 1>*>(shared);
  constexpr int kThreads = sparse_threads(kSparseTile);
  const int column_tiles = (params.head_dim + kSparseTile - 1) / kSparseTile;
  const int number = static_cast<int>(blockIdx.x) / column_tiles;
  const SparseUnit unit(params, number);
  const int first_column = (static_cast<int>(blockIdx.x) - number * column_tiles) * kSparseTile;
  const int first_head = static_cast<int>(blockIdx.y) * C.heads;
  const int padded = weight_heads(params.group);

  float dq[1][C.heads / 8][4] = {};
  for (int i = 0; i < params.source_count; ++i) {
    const SparseRows& source = params.sources[i];
    const int keys = unit.keys(source);
    multiply<C.element, Operands{.a_by_k = true, .b_by_k = true}, kSparseTile, C.heads>(
        dq, tiles, Lengths<1>{keys}, [&](int first, unsigned short* a, auto& b) {
          start_tile<C.aligned, kSparseTile, kThreads>(a, first_column, params.head_dim, params.q.data, [&](int key) {
            return first + key < keys ? unit.key_row(source, source.k, first + key) : nullptr;
          });
          start_tile<true, kSparseTile, kThreads>(b[0], first_head, padded, params.ds, [&](int key) {
            return first + key < keys ? unit.weights(params.ds, source, first + key) : nullptr;
          });
        });
  }

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = first_column + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int tile = 0; tile < C.heads / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int own = column + i / 2 * 8;
      unsigned short* const row = unit.head_row(params.dq, first_head + tile * 8 + lane % 4 * 2 + i % 2);
      if (row != nullptr && own < params.head_dim) {
        set_element<C.element>(row, own, dq[0][tile][i] * params.scale);
      }
    }
  }
}

}  // namespace strobe::auxiliary
