// SPDX-License-Identifier: Apache-2.0
// Without warp specialisation the consumers feed themselves: one thread of the first warpgroup refills a stage as soon
// as it has released it, and waits there for the others to have released it too.
#pragma once

#include "kernels/sm90/forward/feeder.h"

namespace strobe::sm90::forward {

template <Config C, bool warp_specialized>
class SelfFeederOf {
 public:
  __device__ __forceinline__ SelfFeederOf(const Feeders<C>& feeders, int warpgroup)
      : queries_(feeders.queries()),
        keys_(feeders.keys()),
        values_(feeders.values()),
        feeds_(warpgroup == 0 && threadIdx.x % kWarpgroupSize == 0) {
    if (feeds_) {
      for (int stage = 0; stage < C.q_stages; ++stage) {
        queries_.feed();
      }
      for (int stage = 0; stage < C.stages; ++stage) {
        keys_.feed();
        values_.feed();
      }
    }
  }

  __device__ __forceinline__ void released_q() { feed(queries_); }
  __device__ __forceinline__ void released_k() { feed(keys_); }
  __device__ __forceinline__ void released_v() { feed(values_); }

 private:
  template <typename Feeder>
  __device__ __forceinline__ void feed(Feeder& feeder) {
    if (feeds_) {
      feeder.feed();
    }
    __syncwarp();
  }

  QueryFeeder<C> queries_;
  KeyFeeder<C, false> keys_;
  KeyFeeder<C, true> values_;
  const bool feeds_;
};

/// The producers feed: nothing to do here.
template <Config C>
class SelfFeederOf<C, true> {
 public:
  __device__ __forceinline__ SelfFeederOf(const Feeders<C>&, int) {}
  __device__ __forceinline__ void released_q() {}
  __device__ __forceinline__ void released_k() {}
  __device__ __forceinline__ void released_v() {}
};

template <Config C>
using SelfFeeder = SelfFeederOf<C, C.warp_specialized>;

}  // namespace strobe::sm90::forward
