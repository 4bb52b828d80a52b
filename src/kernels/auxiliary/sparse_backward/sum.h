// SPDX-License-Identifier: Apache-2.0
// Adds the shares of a wave to the rows that they belong to, in the order of the queries and of their lists. A CTA has
// some rows, finds the places of all lists that name one of them, in order, and each of its warps adds what belongs to
// its own rows: no two warps add to one row, so that a sum's order depends on the lists alone.
#pragma once

#include "kernels/auxiliary/sparse_backward/params.h"

namespace strobe::auxiliary {

constexpr int kSumWarps = kSparseSumThreads / 32;
constexpr int kPlacesOfThread = 4;
constexpr int kSumPlaces = kSparseSumThreads * kPlacesOfThread;  // that are looked at together
constexpr int kFoundPlaces = 2 * kSumPlaces;                     // whose shares are added together

struct FoundPlaces {
  int row[kFoundPlaces];  // of the CTA's
  int place[kFoundPlaces];
  int of_warp[kSumWarps];
};

/// The rows that a thread's places of [first, first + kSumPlaces) name, those of a warp one behind another.
struct NamedRows {
  __device__ __forceinline__ static int place(int first, int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return first + (thread / 32 * kPlacesOfThread + i) * 32 + thread % 32;
  }

  __device__ __forceinline__ void load(const SparseSumParams& params, int first, int list) {
    const int places = params.queries * params.width;
#pragma unroll
    for (int i = 0; i < kPlacesOfThread; ++i) {
      row[i] = -1;
      if (place(first, i) < places) {
        const int query = params.by_width.quotient(place(first, i));
        const int in_list = place(first, i) - query * params.width;
        const long long of_query = static_cast<long long>(query) * params.lists + list;
        if (in_list < __ldg(params.counts + of_query)) {
          row[i] = __ldg(params.places + of_query * params.width + in_list);
        }
      }
    }
  }

  int row[kPlacesOfThread];  // -1: none
};

/// Appends the CTA's rows among those, in order, to the `count` that there are; returns how many there are then.
__device__ __forceinline__ int append_places(const SparseSumParams& params, FoundPlaces& found, int count,
                                             const NamedRows& rows, int first, int first_row) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned named[kPlacesOfThread];
  int own = 0;
#pragma unroll
  for (int i = 0; i < kPlacesOfThread; ++i) {
    const int row = rows.row[i] - first_row;
    named[i] = __ballot_sync(0xffffffffU, rows.row[i] >= 0 && row >= 0 && row < params.rows_of_cta);
    own += __popc(named[i]);
  }
  if (lane == 0) {
    found.of_warp[warp] = own;
  }
  __syncthreads();
  int before = count;
  int all = count;
#pragma unroll
  for (int other = 0; other < kSumWarps; ++other) {
    before += other < warp ? found.of_warp[other] : 0;
    all += found.of_warp[other];
  }
#pragma unroll
  for (int i = 0; i < kPlacesOfThread; ++i) {
    if ((named[i] >> lane & 1U) != 0) {
      const int at = before + __popc(named[i] & ((1U << lane) - 1));
      found.row[at] = rows.row[i] - first_row;
      found.place[at] = NamedRows::place(first, i);
    }
    before += __popc(named[i]);
  }
  __syncthreads();
  return all;
}

/// Columns of a share or a sum that a lane has, of a block of them.
struct LaneColumns {
  static constexpr int kVectors = 5;
  static constexpr int kBlock = kVectors * 128;  // columns of a warp

  __device__ __forceinline__ static int column(int i) { return (i * 32 + static_cast<int>(threadIdx.x) % 32) * 4; }

  /// `left`: columns from `from` on. `streamed`: nobody reads them again.
  template <bool streamed>
  __device__ __forceinline__ void load(const float* from, int left) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (column(i) < left) {
        const auto* const at = reinterpret_cast<const float4*>(from + column(i));
        vectors[i] = streamed ? __ldcs(at) : *at;
      }
    }
  }

  __device__ __forceinline__ void add_and_store(const LaneColumns& other, float* to, int left) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (column(i) < left) {
        const float4& a = vectors[i];
        const float4& b = other.vectors[i];
        *reinterpret_cast<float4*>(to + column(i)) = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
      }
    }
  }

  float4 vectors[kVectors];
};

/// The places that name a warp's rows, in order. All lanes of a warp have the same.
class OwnPlaces {
 public:
  __device__ __forceinline__ OwnPlaces(const FoundPlaces& found, int count) : found_(found), count_(count) {}

  /// The next of them, or -1.
  __device__ __forceinline__ int next() {
    while (own_ == 0) {
      first_ += 32;
      if (first_ >= count_) return -1;
      const int at = first_ + static_cast<int>(threadIdx.x) % 32;
      const int warp = static_cast<int>(threadIdx.x) / 32;
      own_ = __ballot_sync(0xffffffffU, at < count_ && found_.row[at] % kSumWarps == warp);
    }
    const int at = first_ + __ffs(static_cast<int>(own_)) - 1;
    own_ &= own_ - 1;
    return at;
  }

 private:
  const FoundPlaces& found_;
  int count_;
  int first_ = -32;
  unsigned own_ = 0;
};

/// Adds the shares of the places that were found. The next share is on its way while one is added.
__device__ __forceinline__ void add_shares(const SparseSumParams& params, const FoundPlaces& found, int count,
                                           int first_row, int head_kv) {
  const auto share_of = [&](int at) {
    const int place = found.place[at];
    const long long query = params.by_width.quotient(place);
    const long long of_all = (query * params.heads_kv + head_kv) * params.width + place - query * params.width;
    return params.shares + of_all * params.columns;
  };
  const auto sums_of = [&](int at) {
    const long long row = first_row + found.row[at];
    return params.sums + (row * params.heads_kv + head_kv) * params.columns;
  };
  for (int column = 0; column < params.columns; column += LaneColumns::kBlock) {
    const int left = params.columns - column;
    OwnPlaces places(found, count);
    LaneColumns share;
    int at = places.next();
    if (at >= 0) {
      share.load<true>(share_of(at) + column, left);
    }
    while (at >= 0) {
      const int next = places.next();
      float* const to = sums_of(at) + column;
      LaneColumns sum;
      sum.load<false>(to, left);
      LaneColumns next_share;
      if (next >= 0) {
        next_share.load<true>(share_of(next) + column, left);
      }
      sum.add_and_store(share, to, left);
      share = next_share;
      at = next;
    }
  }
}

/// Grid: ranges of rows, key heads.
__global__ void __launch_bounds__(kSparseSumThreads) sparse_sum(const __grid_constant__ SparseSumParams params) {
  __shared__ FoundPlaces found;
  const int first_row = static_cast<int>(blockIdx.x) * params.rows_of_cta;
  const int head_kv = static_cast<int>(blockIdx.y);
  const int list = params.lists > 1 ? head_kv : 0;
  const int places = params.queries * params.width;
  int count = 0;
  NamedRows next;
  next.load(params, 0, list);
  for (int first = 0; first < places; first += kSumPlaces) {
    const NamedRows rows = next;
    next.load(params, first + kSumPlaces, list);  // on its way meanwhile
    count = append_places(params, found, count, rows, first, first_row);
    if (count > kFoundPlaces - kSumPlaces || first + kSumPlaces >= places) {
      add_shares(params, found, count, first_row, head_kv);
      count = 0;
    }
    __syncthreads();  // before places are found anew
  }
}

}  // namespace strobe::auxiliary
