// Packed sequences in the order in which they are computed, and where each one's work begins: every CTA makes the same
// table for itself when it starts, so that lengths need not leave the device and no kernel must run before.
//
// The longest tiles come first and the lanes take turns, there and back: no lane ends far behind another. Where a
// causal mask makes the tiles of one sequence differ, its first and its last, second and last but one ... are taken
// together, as their sum is the same.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/scheduler/sequence_rows.h"

namespace strobe::hopper {

template <KernelConfig C>
constexpr bool kTilesInPairs = C.mask_right && !C.mask_left;

/// Tiles of one head of a sequence: those that have a row in use.
template <KernelConfig C>
__device__ __forceinline__ int tiles_of(const SequenceRows& q) {
  constexpr int kRows = block_m(C) * C.cluster;
  return (q.used * C.packed_heads + kRows - 1) / kRows;
}

template <KernelConfig C>
__device__ __forceinline__ int units_of(const SequenceRows& q) {
  return kTilesInPairs<C> ? (tiles_of<C>(q) + 1) / 2 : tiles_of<C>(q);
}

/// How long a unit of the sequence takes, in key blocks.
template <KernelConfig C>
__device__ __forceinline__ int cost_of(const ForwardParams& params, const Sequence& sequence) {
  constexpr int kRows = block_m(C) * C.cluster;
  const KeyBlocks first = key_blocks<C>(params, sequence, 0, kRows);
  const KeyBlocks last = key_blocks<C>(params, sequence, (tiles_of<C>(sequence.q) - 1) * kRows, kRows);
  return first.end - first.begin + last.end - last.begin;
}

/// A stable sort by counting, then a running sum. By all threads of the CTA; `order` is ready after a __syncthreads.
template <KernelConfig C>
__device__ __forceinline__ void make_order(const ForwardParams& params, SequenceOrder& order) {
  constexpr int kMost = (kMaxOrderedSequences + threads_per_block(C) - 1) / threads_per_block(C);
  int place[kMost];
  int* costs = order.first_unit;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int sequence = threadIdx.x + i * threads_per_block(C);
    if (sequence < params.sequences) {
      costs[sequence] = cost_of<C>(params, sequence_of<C>(params, sequence));
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int sequence = threadIdx.x + i * threads_per_block(C);
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
    const int sequence = threadIdx.x + i * threads_per_block(C);
    if (sequence < params.sequences) {
      order.sequence[place[i]] = static_cast<unsigned short>(sequence);
      order.first_unit[place[i]] = units_of<C>(query_rows<C>(params, sequence));
    }
  }
  __syncthreads();
  if (threadIdx.x < kWarpSize) {
    int sum = 0;
    for (int first = 0; first < params.sequences; first += kWarpSize) {
      const int at = first + static_cast<int>(threadIdx.x);
      const int units = at < params.sequences ? order.first_unit[at] : 0;
      int up_to = units;
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int before = __shfl_up_sync(0xffffffffU, up_to, distance);
        up_to += static_cast<int>(threadIdx.x) >= distance ? before : 0;
      }
      if (at < params.sequences) {
        order.first_unit[at] = sum + up_to - units;
      }
      sum += __shfl_sync(0xffffffffU, up_to, kWarpSize - 1);
    }
    if (threadIdx.x == 0) {
      order.first_unit[params.sequences] = sum;
    }
  }
}

}  // namespace strobe::hopper
