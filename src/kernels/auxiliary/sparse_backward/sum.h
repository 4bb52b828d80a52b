// SPDX-License-Identifier: Apache-2.0
// Adds the shares of a wave to the rows that they belong to, in the order of the queries and of their lists. A CTA has
// some rows, finds the places of all lists that name one of them, in order, and each of its warps adds what belongs to
// its own rows: no two warps add to one row, so that a sum's order depends on the lists alone.
#pragma once

#include "kernels/auxiliary/sparse_backward/params.h"

namespace strobe::auxiliary {

constexpr int kSumWarps = kSparseSumThreads / 32;
constexpr int kPlacesOfThread = 4;
constexpr int kSumPlaces = kSparseSumThreads * kPlacesOfThread;  // that are looked at before their shares are added

struct FoundPlaces {
  int row[kSumPlaces];  // of the CTA's
  int place[kSumPlaces];
  int of_warp[kSumWarps];
};

/// The rows of the CTA that places [first, first + kSumPlaces) name, in order; returns how many.
__device__ __forceinline__ int find_places(const SparseSumParams& params, FoundPlaces& found, int first, int places,
                                           int list, int first_row) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int row[kPlacesOfThread];
  unsigned named[kPlacesOfThread];
  int own = 0;
#pragma unroll
  for (int i = 0; i < kPlacesOfThread; ++i) {
    const int place = first + (warp * kPlacesOfThread + i) * 32 + lane;
    row[i] = -1;
    if (place < places) {
      const int query = params.by_width.quotient(place);
      const int in_list = place - query * params.width;
      const long long of_query = static_cast<long long>(query) * params.lists + list;
      if (in_list < __ldg(params.counts + of_query)) {
        row[i] = __ldg(params.places + of_query * params.width + in_list) - first_row;
      }
    }
    named[i] = __ballot_sync(0xffffffffU, row[i] >= 0 && row[i] < params.rows_of_cta);
    own += __popc(named[i]);
  }
  if (lane == 0) {
    found.of_warp[warp] = own;
  }
  __syncthreads();
  int before = 0;
  int all = 0;
#pragma unroll
  for (int other = 0; other < kSumWarps; ++other) {
    before += other < warp ? found.of_warp[other] : 0;
    all += found.of_warp[other];
  }
#pragma unroll
  for (int i = 0; i < kPlacesOfThread; ++i) {
    if ((named[i] >> lane & 1U) != 0) {
      const int at = before + __popc(named[i] & ((1U << lane) - 1));
      found.row[at] = row[i];
      found.place[at] = first + (warp * kPlacesOfThread + i) * 32 + lane;
    }
    before += __popc(named[i]);
  }
  __syncthreads();
  return all;
}

/// sums of one row += a share.
__device__ __forceinline__ void add_share(float* sums, const float* share, int columns) {
  for (int column = static_cast<int>(threadIdx.x) % 32 * 4; column < columns; column += 128) {
    const float4 more = __ldcs(reinterpret_cast<const float4*>(share + column));
    float4& sum = *reinterpret_cast<float4*>(sums + column);
    sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
  }
}

/// Grid: ranges of rows, key heads.
__global__ void __launch_bounds__(kSparseSumThreads) sparse_sum(const __grid_constant__ SparseSumParams params) {
  __shared__ FoundPlaces found;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(blockIdx.x) * params.rows_of_cta;
  const int head_kv = static_cast<int>(blockIdx.y);
  const int list = params.lists > 1 ? head_kv : 0;
  const int places = params.queries * params.width;
  for (int first = 0; first < places; first += kSumPlaces) {
    const int count = find_places(params, found, first, places, list, first_row);
    for (int at = 0; at < count; at += 32) {
      const int row = at + lane < count ? found.row[at + lane] : -1;
      unsigned own = __ballot_sync(0xffffffffU, row >= 0 && row % kSumWarps == warp);
      for (; own != 0; own &= own - 1) {
        const int next = at + __ffs(static_cast<int>(own)) - 1;
        const int place = found.place[next];
        const int query = params.by_width.quotient(place);
        const long long share = (static_cast<long long>(query) * params.heads_kv + head_kv) * params.width + place -
                                static_cast<long long>(query) * params.width;
        const long long to = static_cast<long long>(first_row + found.row[next]) * params.heads_kv + head_kv;
        add_share(params.sums + to * params.columns, params.shares + share * params.columns, params.columns);
      }
    }
    __syncthreads();  // before places are found anew
  }
}

}  // namespace strobe::auxiliary
