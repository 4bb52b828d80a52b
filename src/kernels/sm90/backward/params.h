// SPDX-License-Identifier: Apache-2.0
// What the host hands to the backward kernels beside the tensor maps: the same values to each of them. Plain C++
// without std headers, shared by host and device.
#pragma once

#include "kernels/score/backward_params.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/tile/tensor_map.h"

namespace strobe::sm90::backward {

/// The tensor maps of one call. Boxes of Q and dO have block_m rows, of K and V block_n, of dK and dV 64.
struct TensorMaps {
  TensorMap q, k, v, d_o, dk, dv;
  TensorMap bias;  // variants with bias_stages
};

/// The tensor maps of dQ's kernel: boxes of 64 rows.
struct QueryGradientMaps {
  TensorMap k, dq;
};

/// The sums of dQ are null by roles; else [block_m * head_dim (as compiled)] floats of each block (joint/query_sums.h).
struct Params : BackwardParams {
  // Where Config says so, for the tensor cores (kernels/math/hi_lo.h): what they add to S and dP instead.
  const unsigned char* lse_hi_lo;  // null where Config says that LSE stays one float32
  const unsigned char* d_hi_lo;
  // By roles: dS^T in tiles of 64 keys x 64 queries, swizzled as in shared memory: [query heads of this launch,
  // key_blocks, m_blocks * block_m / 64], where a launch covers `items` from first_head_kv on. Null otherwise.
  unsigned char* ds;
  BiasBoxParams bias_boxes;

  int first_head_kv;  // of [batch, heads_kv]: where this launch begins; only by roles other than 0
  int items;          // key blocks of all key heads: key_blocks * heads_kv * batch, or those of this launch
  // The key blocks [first_key_block, first_key_block + key_blocks) of every sequence that this launch covers; only by
  // roles others than all n_blocks.
  int first_key_block, key_blocks;
  // By roles, where several launches share out the key blocks: dQ / scale of those before, in float32, [query heads of
  // this launch, m_blocks * block_m / 64] tiles of 64 queries in the order of the accumulators' registers.
  float* dq_before;

  // Where items share blocks of keys: how many share one, and the query heads of each, the last of which may have
  // fewer. Their sums (key_sums.h), in which a head has key_sum_blocks blocks.
  int key_parts, part_heads;
  int key_sum_blocks;
  int launch_heads;  // key heads of this launch
  float* dk_sums;
  float* dv_sums;
};

/// Floats of lse_log2, and of d_sum.
constexpr long long row_floats(int heads, int query_blocks, int block_m) {
  return static_cast<long long>(heads) * query_blocks * block_m;
}

/// Elements of dq_semaphores.
constexpr long long semaphore_count(int heads, int query_blocks) {
  return static_cast<long long>(heads) * query_blocks * kOrderedParts;
}

/// Floats of dq_sum; head_dim as compiled.
constexpr long long query_gradient_floats(int heads, int query_blocks, int block_m, int head_dim) {
  return row_floats(heads, query_blocks, block_m) * head_dim;
}

// Tiles of dS.
inline constexpr int kScoreTile = 64;  // keys, and queries
inline constexpr int kScoreTileBytes = kScoreTile * kScoreTile * 2;

/// Bytes of dS for one query head of one sequence.
constexpr long long score_gradient_bytes(int m_blocks, int key_blocks, int block_m) {
  return static_cast<long long>(m_blocks) * (block_m / kScoreTile) * key_blocks * kScoreTileBytes;
}

}  // namespace strobe::sm90::backward
