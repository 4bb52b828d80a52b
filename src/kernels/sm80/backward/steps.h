// SPDX-License-Identifier: Apache-2.0
// The steps of an item: blocks of queries of every query head that reads the key head, past those that a block mask
// hides.
#pragma once

#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sm80/backward/work.h"

namespace strobe::sm80::backward {

struct Step {
  int head;  // within the group; the number of heads where there are no more steps
  int m;
};

/// All blocks between m_begin and m_end.
template <Config C>
class Steps {
 public:
  __device__ __forceinline__ Steps(const Params& params, const Work& work) : params_(params), work_(work) {}

  __device__ __forceinline__ Step first() { return from(work_.m_begin < work_.m_end ? 0 : params_.heads_per_kv); }
  __device__ __forceinline__ Step after(const Step& step) {
    return step.m + 1 < work_.m_end ? Step{step.head, step.m + 1} : from(step.head + 1);
  }
  __device__ __forceinline__ bool has(const Step& step) const { return step.head < params_.heads_per_kv; }

 private:
  __device__ __forceinline__ Step from(int head) const { return {head, work_.m_begin}; }

  const Params& params_;
  const Work& work_;
};

/// The steps that a block mask shows: whole warps look at as many blocks at once as they have lanes.
template <Config C>
  requires(C.rule.block_mask != 0)
class Steps<C> {
 public:
  __device__ __forceinline__ Steps(const Params& params, const Work& work) : params_(params), work_(work) {}

  __device__ __forceinline__ Step first() { return find(0, work_.m_begin); }
  __device__ __forceinline__ Step after(const Step& step) { return find(step.head, step.m + 1); }
  __device__ __forceinline__ bool has(const Step& step) const { return step.head < params_.heads_per_kv; }

 private:
  __device__ __forceinline__ Step find(int head, int m) {
    while (head < params_.heads_per_kv) {
      while (m < work_.m_end) {
        const int window = m / kWarpSize * kWarpSize;
        look_at(head, window);
        const unsigned left = shown_ >> (m - window);
        if (left != 0) {
          return {head, m + __ffs(static_cast<int>(left)) - 1};
        }
        m = window + kWarpSize;
      }
      ++head;
      m = work_.m_begin;
    }
    return {head, m};
  }

  __device__ __forceinline__ void look_at(int head, int window) {
    if (head == head_ && window == window_) {
      return;
    }
    head_ = head;
    window_ = window;
    const int block = window + lane_of_warp();
    const int first_head = work_.head_kv * params_.heads_per_kv;
    const bool shown =
        block < work_.m_end && score::sees_block<C.rule>(params_.blocks, work_.sequence, first_head + head,
                                                         block * C.block_m, work_.n * block_n(C));
    shown_ = __ballot_sync(kFullWarp, shown);
  }

  const Params& params_;
  const Work& work_;
  int head_ = -1, window_ = -1;  // what shown_ holds
  unsigned shown_ = 0;
};

}  // namespace strobe::sm80::backward
