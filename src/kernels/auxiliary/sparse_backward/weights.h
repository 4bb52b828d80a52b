// SPDX-License-Identifier: Apache-2.0
// P and dS of sparse attention: S^T = K Q^T and dP^T = V dO^T of the keys of a unit, whose rows are gathered.
#pragma once

#include "kernels/auxiliary/sparse_backward/tile.h"
#include "kernels/auxiliary/sparse_backward/unit.h"
#include "kernels/math/constants.h"

namespace strobe::auxiliary {

/// P in place of a product, and dS, without the scale, in place of dP.
__device__ __forceinline__ void differentiate(const SparseBackwardParams& params, float lse_log2, float d_sum,
                                              float& product, float& dp) {
  float exponent = product * params.scale_log2;
  float slope = 1.0F;
  if (params.cap_log2 != 0.0F) {
    const float capped = tanhf(product * params.cap_scale);
    exponent = capped * params.cap_log2;
    slope = __fmaf_rn(-capped, capped, 1.0F);
  }
  product = ptx::ex2_approx(exponent - lse_log2);
  dp = product * (dp - d_sum) * slope;
}

/// Grid: units * tiles of keys, blocks of heads.
template <SparseBackwardConfig C>
__global__ void __launch_bounds__(sparse_threads(kSparseKeys), 2)
    sparse_weights(const __grid_constant__ SparseBackwardParams params) {
  extern __shared__ unsigned char shared[];
  auto& tiles = *reinterpret_cast<SparseTiles<kSparseKeys, 2>*>(shared);
  constexpr int kThreads = sparse_threads(kSparseKeys);
  const SparseRows& source = params.sources[params.source];
  const auto [unit, first_key, keys] = SparseUnitKeys::of(params, source, static_cast<int>(blockIdx.x));
  const int first_head = static_cast<int>(blockIdx.y) * C.heads;
  if (keys <= 0) return;

  constexpr Operands kLie{.a_by_k = false, .b_by_k = false};
  const auto start_keys = [&](unsigned short* tile, const Rows& rows, int first, int columns) {
    start_tile<C.aligned, kSparseKeys, kThreads>(tile, first, columns, params.q.data, [&](int key) {
      return key < keys ? unit.key_row(source, rows, first_key + key) : nullptr;
    });
  };
  const auto start_heads = [&](unsigned short* tile, const Rows& rows, int first, int columns) {
    start_tile<C.aligned, C.heads, kThreads>(tile, first, columns, params.q.data,
                                             [&](int head) { return unit.head_row(rows, first_head + head); });
  };
  float d[2][C.heads / 8][4] = {};
  auto& s = d[0];
  auto& dp = d[1];
  if (source.v_apart) {
    multiply<C.element, kLie, kSparseKeys, C.heads>(d, tiles, Lengths<1>{params.head_dim},
                                                    [&](int first, unsigned short* a, auto& b) {
                                                      start_keys(a, source.k, first, params.head_dim);
                                                      start_heads(b[0], params.q, first, params.head_dim);
                                                    });
    multiply<C.element, kLie, kSparseKeys, C.heads>(d + 1, tiles, Lengths<1>{params.head_dim_v},
                                                    [&](int first, unsigned short* a, auto& b) {
                                                      start_keys(a, source.v, first, params.head_dim_v);
                                                      start_heads(b[0], params.d_o, first, params.head_dim_v);
                                                    });
  } else {  // one row is both's, and may have more columns than V
    multiply<C.element, kLie, kSparseKeys, C.heads>(d, tiles, Lengths<2>{params.head_dim, params.head_dim_v},
                                                    [&](int first, unsigned short* a, auto& b) {
                                                      start_keys(a, source.k, first, params.head_dim);
                                                      start_heads(b[0], params.q, first, params.head_dim);
                                                      if (first < params.head_dim_v) {
                                                        start_heads(b[1], params.d_o, first, params.head_dim_v);
                                                      }
                                                    });
  }

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int key = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const int padded = weight_heads(params.group);
#pragma unroll
  for (int tile = 0; tile < C.heads / 8; ++tile) {
    const int head = first_head + tile * 8 + lane % 4 * 2;
    if (head >= padded) break;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool exists = head + i < params.group;
      const long long at = (unit.head_kv * params.group + head + i) * params.rows + unit.row;
      const float lse_log2 = exists ? __ldg(params.lse_log2 + at) : 0.0F;
      const float d_sum = exists ? __ldg(params.d_sum + at) : 0.0F;
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        differentiate(params, lse_log2, d_sum, s[tile][half + i], dp[tile][half + i]);
        if (!exists) s[tile][half + i] = dp[tile][half + i] = 0.0F;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (key + half * 8 >= keys) continue;
      const int own = first_key + key + half * 8;
      const auto store = [&](unsigned short* of_all, const float* pair) {
        *reinterpret_cast<unsigned*>(unit.weights(of_all, source, own) + head) = pack<C.element>(pair[0], pair[1]);
      };
      store(params.p, s[tile] + 2 * half);
      store(params.ds, dp[tile] + 2 * half);
    }
  }
}

}  // namespace strobe::auxiliary
