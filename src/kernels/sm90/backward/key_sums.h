// SPDX-License-Identifier: Apache-2.0
// Where items share blocks of keys (Config::shares_keys): the float32 sums of dK and dV that each leaves, for
// finish_keys.h to add up.
//
// 64 keys lie there in the order of the accumulators' registers, as parts of dQ do (joint/query_sums.h). For each part
// of each key head there are key_sum_blocks blocks of block_n keys. A packed sequence begins at block cu_seqlens_k[b] /
// block_n + b, as in sequence/query_blocks.h.
#pragma once

#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/joint/query_sums.h"
#include "kernels/sm90/backward/params.h"

namespace strobe::sm90::backward {

/// The sums of one part of 64 keys, which are number `tile` of the block; head_dim as compiled.
template <Config C>
__device__ __forceinline__ long long key_sums_at(const Params& params, const score::KeyBlock& keys, int part, int tile,
                                                 int head_dim) {
  const int* const starts = params.sequences.cu_seqlens_k;
  const int first = C.rule.varlen && starts != nullptr ? starts[keys.sequence] / block_n(C) + keys.sequence
                                                       : keys.sequence * params.n_blocks;
  const long long head = static_cast<long long>(keys.head_kv) * params.key_parts + part;
  const long long block = head * params.key_sum_blocks + first + keys.n;
  return (block * (block_n(C) / kRowsPerWarpgroup) + tile) * kRowsPerWarpgroup * head_dim;
}

/// Leaves a warpgroup's accumulators there.
template <int n>
__device__ __forceinline__ void store_key_sums(float* sums, const float (&accumulators)[n]) {
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    own_sums(sums)[j * kWarpgroupSize] = {accumulators[4 * j], accumulators[4 * j + 1], accumulators[4 * j + 2],
                                          accumulators[4 * j + 3]};
  }
}

}  // namespace strobe::sm90::backward
