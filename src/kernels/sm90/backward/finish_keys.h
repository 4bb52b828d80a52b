// SPDX-License-Identifier: Apache-2.0
// dK and dV where items share blocks of keys: the parts' sums, added up in order, scaled and converted. Rows that are
// not finite and may have got that from hidden pairs are computed again.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/converted_sums.h"
#include "kernels/sm90/backward/epilogue.h"
#include "kernels/sm90/backward/key_sums.h"

namespace strobe::sm90::backward {

/// Four columns of two rows, of all parts, in order.
__device__ __forceinline__ float4 sum_of_parts(const float4* sums, long long part_stride, int parts) {
  float4 sum = *sums;
#pragma unroll 4
  for (int part = 1; part < parts; ++part) {
    const float4 x = sums[part * part_stride];
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
  }
  return sum;
}

/// 64 keys of one side by a warpgroup, from the sequence's key `first` on. False if this thread of a masked variant had
/// a value that is not finite.
template <Config C, KeySide side>
__device__ __forceinline__ bool convert_key_gradient(const Params& params, const score::KeyBlock& keys, int tile) {
  constexpr bool kOfK = side == KeySide::k;
  constexpr int kColumns = kOfK ? C.head_dim : C.head_dim_v;
  const Rows& gradient = kOfK ? params.dk : params.dv;
  const int columns = kOfK ? params.head_dim : params.head_dim_v;
  const float factor = kOfK ? score::gradient_scale<C.rule>(params, keys.k.used) * score_gradient_factor(C)
                            : value_gradient_factor<C>(params);
  const float4* const sums =
      own_sums((kOfK ? params.dk_sums : params.dv_sums) + key_sums_at<C>(params, keys, 0, tile, kColumns));
  const long long part_stride = static_cast<long long>(params.key_sum_blocks) * block_n(C) * kColumns / 4;
  return convert_sums<C, kColumns, 2>(
      factor, [&](int i) { return sum_of_parts(sums + i * kWarpgroupSize, part_stride, params.key_parts); },
      [&](int first, int r, const uint32_t (&words)[4]) {
        const uint4 chunk = exchange_quad(words);
        const int column = (first + static_cast<int>(threadIdx.x % 4)) * 8;
        const int key = keys.n * block_n(C) + tile * kRowsPerWarpgroup + warpgroup_row(r);
        if (key < keys.k.owned && column < columns) {
          unsigned short* const to =
              gradient.row(score::k_batch(params, keys.sequence), keys.k.start + key, keys.head_kv) + column;
          *reinterpret_cast<uint4*>(to) = key < keys.k.used ? chunk : make_uint4(0, 0, 0, 0);
        }
      });
}

/// One side, and its rows that are not finite once more.
template <Config C, KeySide side>
__device__ __forceinline__ void finish_key_gradient(const Params& params, const score::KeyBlock& keys, int tile) {
  const bool finite = convert_key_gradient<C, side>(params, keys, tile);
  constexpr int kBarrier = kWarpgroup + (side == KeySide::k ? 0 : 1);
  if (is_masked(C.rule) && ptx::bar_red_or(kBarrier, kWarpgroupSize, !finite)) {
    constexpr int kColumns = side == KeySide::k ? C.head_dim : C.head_dim_v;
    const int begin = keys.n * block_n(C) + tile * kRowsPerWarpgroup + warp_of_warpgroup() * kRowsPerWarp;
    score::repair_keys<C.rule, kColumns, side>(params, keys, {keys.sequence, keys.head_kv}, C.block_m, begin,
                                               begin + kRowsPerWarp);
  }
}

/// Grid: tiles of 64 keys of all blocks of all key heads. Blocks that no query sees are zeros already.
template <Config C>
__global__ void __launch_bounds__(kFinishKeysThreads, 2)
    finish_key_gradients(const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  static_assert(C.shares_keys);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kTiles = block_n(C) / kRowsPerWarpgroup;
  const int tile = blockIdx.x % kTiles;
  const int number = blockIdx.x / kTiles;
  const int flat = number / params.n_blocks;
  const int sequence = flat / params.heads_kv;
  score::KeyBlock keys{score::sequence_of<C.rule>(params, sequence)};
  keys.sequence = sequence;
  keys.head_kv = flat - sequence * params.heads_kv;
  keys.n = number - flat * params.n_blocks;
  score::find_query_blocks<C.rule, C.block_m, block_n(C)>(params, keys);
  if (keys.m_begin >= keys.m_end) {
    return;
  }
  if (threadIdx.x / kWarpgroupSize == 0) {
    finish_key_gradient<C, KeySide::k>(params, keys, tile);
  } else {
    finish_key_gradient<C, KeySide::v>(params, keys, tile);
  }
}

}  // namespace strobe::sm90::backward
