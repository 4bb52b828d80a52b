// SPDX-License-Identifier: Apache-2.0
// The walk of a pair over its steps, which all of its warpgroups take alike.
#pragma once

#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/wide/barriers.h"
#include "kernels/sm90/backward/work.h"

namespace strobe::sm90::backward {

/// Calls body(head, m) for every step: blocks of queries of all query heads that read the key head, less those that a
/// block mask hides. `head`: of all of a sequence. Warps and single threads walk alike.
template <Config C, typename Body>
__device__ __forceinline__ void for_each_wide_step(const Params& params, const Work& work, Body body) {
  int m = work.m_begin;
  int head = work.head_kv * params.heads_per_kv;
#pragma unroll 1
  for (int remaining = max(work.steps(), 0) * params.heads_per_kv; remaining > 0; --remaining) {
    if (score::sees_block<C.rule>(params.blocks, work.sequence, head, m * C.block_m, work.n * block_n(C))) {
      body(head, m);
    }
    if (++m == work.m_end) {
      m = work.m_begin;
      ++head;
    }
  }
}

/// Whether there is a step.
template <Config C>
__device__ __forceinline__ bool has_wide_steps(const Params& params, const Work& work) {
  if constexpr (C.rule.block_mask == 0) {
    return work.steps() > 0;
  } else {
    bool any = false;
    for_each_wide_step<C>(params, work, [&](int, int) { any = true; });
    return any;
  }
}

/// Panels that exist of the product that makes scores: what is behind them would add zeros.
template <WideRole role>
__device__ __forceinline__ int score_panels(const Params& params) {
  return max(1, panels(role == WideRole::probabilities ? params.head_dim : params.head_dim_v));
}

/// Columns that exist of the sums.
template <WideRole role>
__device__ __forceinline__ int existing_sum_columns(const Params& params) {
  return role == WideRole::probabilities ? params.head_dim_v : params.head_dim;
}

/// What a role reads and writes: K, Q, dO and dV, or V, dO, Q and dK.
template <WideRole role>
struct RoleMaps {
  const TensorMap& keys;     // stay
  const TensorMap& columns;  // of the scores' product
  const TensorMap& summed;   // rows that are added up
  const TensorMap& sums;

  __device__ __forceinline__ explicit RoleMaps(const TensorMaps& maps)
      : keys(role == WideRole::probabilities ? maps.k : maps.v),
        columns(role == WideRole::probabilities ? maps.q : maps.d_o),
        summed(role == WideRole::probabilities ? maps.d_o : maps.q),
        sums(role == WideRole::probabilities ? maps.dv : maps.dk) {}
};

}  // namespace strobe::sm90::backward
