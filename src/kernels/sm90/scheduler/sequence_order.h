// SPDX-License-Identifier: Apache-2.0
// Packed sequences in the order in which they are computed, and where each one's work begins: every CTA makes the same
// table for itself when it starts, so that lengths need not leave the device and no kernel must run before.
//
// The longest tiles come first and the CTAs take turns, there and back: none ends far behind another. Where a
// causal mask makes the tiles of one sequence differ, its first and its last, second and last but one ... are taken
// together, as their sum is the same.
#pragma once

#include "kernels/scheduler/prefix_sums.h"
#include "kernels/scheduler/tile_rows.h"
#include "kernels/sm90/scheduler/schedule.h"

namespace strobe::sm90 {

template <Tiling T>
constexpr bool kTilesInPairs = T.rule.mask_right && !T.rule.mask_left;

template <Tiling T>
__device__ __forceinline__ int units_of(const sequence::SequenceRows& q) {
  return kTilesInPairs<T> ? (tiles_of<T>(q) + 1) / 2 : tiles_of<T>(q);
}

/// How long a unit of the sequence takes, in key blocks. `params`: the kernel's.
template <Tiling T, typename Params>
__device__ __forceinline__ int cost_of(const Params& params, int index) {
  const sequence::Sequence sequence = sequence::sequence_of<T.rule>(params, index);
  const int first_key = sequence::first_positions<T.rule>(params, index).k;
  const sequence::KeyBlocks first = key_blocks<T>(params.visibility, sequence, 0, T.block_m, first_key);
  const sequence::KeyBlocks last =
      key_blocks<T>(params.visibility, sequence, (tiles_of<T>(sequence.q) - 1) * T.block_m, T.block_m, first_key);
  return first.end - first.begin + last.end - last.begin;
}

/// A stable sort by counting, then a running sum. By all threads of the CTA; `order` is ready after a __syncthreads.
template <Tiling T, typename Params>
__device__ __forceinline__ void make_order(const Params& of, SequenceOrder<T.table_sequences>& order) {
  const SequenceParams& params = of.sequences;
  constexpr int kMost = (T.table_sequences + T.threads - 1) / T.threads;
  int place[kMost];
  int* costs = order.first_unit;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int sequence = threadIdx.x + i * T.threads;
    if (sequence < params.sequences) {
      costs[sequence] = cost_of<T>(of, sequence);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int sequence = threadIdx.x + i * T.threads;
    place[i] = 0;
    if (sequence < params.sequences) {
      const int cost = costs[sequence];
      for (int other = 0; other < params.sequences; ++other) {
        place[i] += costs[other] > cost || (costs[other] == cost && other < sequence) ? 1 : 0;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int sequence = threadIdx.x + i * T.threads;
    if (sequence < params.sequences) {
      order.sequence[place[i]] = static_cast<unsigned short>(sequence);
      order.first_unit[place[i]] = units_of<T>(sequence::query_rows<T.rule>(params, sequence));
    }
  }
  __syncthreads();
  if (threadIdx.x < kSumWarp) {
    make_prefix_sums(order.first_unit, params.sequences);
  }
}

}  // namespace strobe::sm90
