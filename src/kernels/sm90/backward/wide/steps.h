// SPDX-License-Identifier: Apache-2.0
// The walk of a pair over its steps, which all of its warpgroups take alike.
#pragma once

#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/wide/barriers.h"
#include "kernels/sm90/backward/work.h"

namespace strobe::sm90::backward {

/// Steps of the item: blocks of queries of all query heads that read the key head.
__device__ __forceinline__ int wide_steps(const Params& params, const Work& work) {
  return max(work.steps(), 0) * params.heads_per_kv;
}

/// Calls body(head, m) for every step; `head`: of all of a sequence.
template <typename Body>
__device__ __forceinline__ void for_each_wide_step(const Params& params, const Work& work, Body body) {
  int m = work.m_begin;
  int head = work.head_kv * params.heads_per_kv;
#pragma unroll 1
  for (int remaining = wide_steps(params, work); remaining > 0; --remaining) {
    body(head, m);
    if (++m == work.m_end) {
      m = work.m_begin;
      ++head;
    }
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
