// SPDX-License-Identifier: Apache-2.0
// In which order the blocks of keys add to dQ, where that is always the same (Config::ordered): those that see a block
// of queries, each after the one before, so that the bits are the same every time. An item waits for items of smaller
// numbers alone, which have started before it.
#pragma once

#include "kernels/sm90/backward/work.h"

namespace strobe::sm90::backward {

/// One item's place in that order at the query blocks that it visits, and the way it takes through them.
struct QueryGradientOrder {
  struct Blocks {
    int begin, end;
    __device__ __forceinline__ bool has(int m) const { return m >= begin && m < end; }
  };
  Blocks before, after;  // what the items before and after it in order visit
  int n, direction;
  int m_first, m_past;

  template <Config C>
  __device__ __forceinline__ static QueryGradientOrder of(const Params& params, const Work& work) {
    return {.before = visited<C>(params, work, work.n + work.direction),
            .after = visited<C>(params, work, work.n - work.direction),
            .n = work.n,
            .direction = work.direction,
            .m_first = work.m_first,
            .m_past = work.m_past};
  }

  /// Whether no other item comes to block m before this one, or after it.
  __device__ __forceinline__ bool first(int m) const { return !before.has(m); }
  __device__ __forceinline__ bool last(int m) const { return !after.has(m); }

 private:
  /// The query blocks that see key block n of the same head, if there is one.
  template <Config C>
  __device__ __forceinline__ static Blocks visited(const Params& params, Work work, int n) {
    if (n < 0 || n >= params.n_blocks) {
      return {0, 0};
    }
    work.n = n;
    score::find_query_blocks<C.rule, C.block_m, block_n(C)>(params, work);
    return {work.m_begin, work.m_end};
  }
};

}  // namespace strobe::sm90::backward
