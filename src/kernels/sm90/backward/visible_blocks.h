// SPDX-License-Identifier: Apache-2.0
// Which blocks of queries and keys a block mask shows. A step lies in one block of the mask, so that it is computed or
// skipped as a whole.
#pragma once

#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sm90/backward/work.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::backward {

/// A search through blocks in order, by whole warps, which look at as many blocks at once as they have lanes.
class BlockSearch {
 public:
  /// The first block in [from, end) for which shows(block) holds, or `end`. `list` tells apart what it is asked about.
  template <typename Shows>
  __device__ __forceinline__ int find(int list, int from, int end, const Shows& shows) {
    while (from < end) {
      const int window = from / kWarpSize * kWarpSize;
      if (list != list_ || window != window_) {
        list_ = list;
        window_ = window;
        const int block = window + static_cast<int>(threadIdx.x % kWarpSize);
        shown_ = __ballot_sync(kFullWarp, block < end && shows(block));
      }
      const unsigned left = shown_ >> (from - window);
      if (left != 0) {
        return min(from + __ffs(static_cast<int>(left)) - 1, end);
      }
      from = window + kWarpSize;
    }
    return end;
  }

 private:
  int list_ = -1, window_ = -1;  // what shown_ holds
  unsigned shown_ = 0;
};

/// An item's blocks of queries: all between m_begin and m_end.
template <Config C>
class VisibleSteps {
 public:
  __device__ __forceinline__ VisibleSteps(const Params&, const Work& work) : work_(work) {}

  /// The first from m on of a head of the group; m_end where there is none.
  __device__ __forceinline__ int from(int, int m) { return m; }
  __device__ __forceinline__ bool any() { return work_.steps() > 0; }
  __device__ __forceinline__ bool none() { return work_.steps() == 0; }  // takes ptxas fewer registers than !any()

 private:
  const Work& work_;
};

/// The blocks of queries that a block mask shows, for whole warps.
template <Config C>
  requires(C.rule.block_mask != 0)
class VisibleSteps<C> {
 public:
  __device__ __forceinline__ VisibleSteps(const Params& params, const Work& work) : params_(params), work_(work) {
    static_assert(!C.ordered && !C.shares_keys && C.rule.block_mask % C.block_m == 0 &&
                  C.rule.block_mask % block_n(C) == 0);
  }

  __device__ __forceinline__ int from(int head, int m) {
    const int first_head = work_.head_kv * params_.heads_per_kv;
    return search_.find(head, m, work_.m_end, [&](int block) {
      return score::sees_block<C.rule>(params_.blocks, work_.sequence, first_head + head, block * C.block_m,
                                       work_.n * block_n(C));
    });
  }

  __device__ __forceinline__ bool any() {
    bool found = false;
    for (int head = 0; head < params_.heads_per_kv && !found; ++head) {
      found = from(head, work_.m_begin) < work_.m_end;
    }
    return found;
  }
  __device__ __forceinline__ bool none() { return !any(); }

 private:
  const Params& params_;
  const Work& work_;
  BlockSearch search_;
};

}  // namespace strobe::sm90::backward
