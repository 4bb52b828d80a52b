// SPDX-License-Identifier: Apache-2.0
// The blocks of keys of a tile as a consumer comes to them, from right to left.
#pragma once

#include "kernels/sm90/forward/tile/assignment.h"
#include "kernels/sm90/forward/tile/blocks.h"

namespace strobe::sm90::forward {

template <Config C>
class Rings;

/// Consumers walk as producers do.
template <Config C>
class VisitedBlocks : public BlockWalk<C> {
 public:
  __device__ __forceinline__ VisitedBlocks(const Params& params, const Assignment& next, int warpgroup)
      : BlockWalk<C>(params, next.work, warpgroup) {}

  /// The last of the blocks that the warpgroup's rows see, behind which it has others to let pass; less than n_begin
  /// where they see none.
  __device__ __forceinline__ int first(Rings<C>&, const Assignment& next) { return this->own_end(next.n_end) - 1; }

  /// The block after n; less than `begin` where there is none.
  __device__ __forceinline__ int next(Rings<C>&, int n, int) { return this->before(n); }
};

/// Tags of the stages of K say which blocks they hold.
template <Config C>
  requires(has_key_tags(C))
class VisitedBlocks<C> {
 public:
  __device__ __forceinline__ VisitedBlocks(const Params&, const Assignment&, int warpgroup)
      : row_(mask_row<C>(warpgroup)) {}

  /// Whether the warpgroup's first block is the tile's.
  __device__ __forceinline__ bool begins_own(Rings<C>& rings, const Assignment& next) {
    take(rings);
    return !tag_.is_none() && is_own(tag_.block()) && tag_.block() < next.n_end;
  }

  /// As above; blocks behind it have been let pass.
  __device__ __forceinline__ int first(Rings<C>& rings, const Assignment& next) {
    take(rings);
    if (tag_.is_none()) {
      rings.pass_keys(1);
      return next.n_begin - 1;
    }
    while (!is_own(tag_.block()) || tag_.block() >= next.n_end) {
      rings.pass_blocks(1);
      if (!tag_.is_followed()) {
        return next.n_begin - 1;
      }
      take(rings);
    }
    return tag_.block();
  }

  /// What was said of the block before says whether there is another one: no one waits for its tag.
  __device__ __forceinline__ int next(Rings<C>& rings, int, int begin) {
    has_more_ = tag_.is_followed();
    if (!has_more_) {
      return begin - 1;
    }
    take(rings);
    return tag_.block();
  }

  __device__ __forceinline__ bool has(int) const { return has_more_; }
  __device__ __forceinline__ bool has_before(int, int) const { return tag_.is_followed(); }
  __device__ __forceinline__ bool is_own(int) const { return kMaskRows<C> == 1 || tag_.is_seen(row_); }
  __device__ __forceinline__ bool is_shown(int) const { return hides_by_text(C.rule) && tag_.is_whole(row_); }
  __device__ __forceinline__ static int count(int, int) { return 0; }  // they have been let pass

 private:
  __device__ __forceinline__ void take(Rings<C>& rings) {
    rings.wait_k();
    tag_ = rings.key_tag();
    __syncwarp();  // one lane gives the stage back for all
  }

  const int row_;
  KeyTag tag_;
  bool has_more_ = true;
};

}  // namespace strobe::sm90::forward
