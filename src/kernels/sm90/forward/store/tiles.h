// SPDX-License-Identifier: Apache-2.0
// What becomes of a warpgroup's tiles, by any loop.
#pragma once

#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/store/empty.h"
#include "kernels/sm90/forward/store/joined.h"
#include "kernels/sm90/forward/store/output.h"
#include "kernels/sm90/forward/store/repair.h"
#include "kernels/sm90/forward/tile/segments.h"

namespace strobe::sm90::forward {

template <Config C>
class TileStore {
 public:
  __device__ __forceinline__ TileStore(const Context<C>& context, int warpgroup)
      : params_(context.params),
        pipe_(context.o, context.smem, warpgroup),
        kept_(context.params, context.smem, warpgroup) {}

  /// The tile's results, as store_tile() stores them. Where tiles have segments, one joins those after it, and the last
  /// is stored.
  __device__ __forceinline__ void put(const TileWork& work, int warpgroup, float (&o)[C.head_dim_v / 2],
                                      Softmax<C>& softmax) {
    if constexpr (eight_bit(C)) {  // whose rows are not repaired
      put_work(work, warpgroup, o, softmax);
    } else {
      finite_ &= put_work(work, warpgroup, o, softmax);
    }
  }

  /// A tile, or a segment of one, of which this warpgroup's rows see no key.
  __device__ __forceinline__ void without_keys(const TileWork& work, int warpgroup) {
    if (ends_tile<C>(work)) {
      store_without_keys<C>(params_, pipe_, work, warpgroup);
    }
  }

  /// After the last tile: rows that are in none, and those whose output is not finite.
  __device__ __forceinline__ void finish(const ScheduleOf<C>& schedule, int warpgroup) {
    if constexpr (C.schedule == Schedule::sorted || (kSplits<C> && C.rule.varlen)) {
      clear_unused_rows<C>(params_, warpgroup);
    }
    pipe_.finish();
    if constexpr (is_masked(C.rule) && !eight_bit(C)) {
      if (!__all_sync(kFullWarp, finite_)) {
        repair_rows<C>(params_, schedule, warpgroup);
      }
    }
  }

 private:
  __device__ __forceinline__ bool put_work(const TileWork& work, int warpgroup, float (&o)[C.head_dim_v / 2],
                                           Softmax<C>& softmax) {
    if constexpr (!folds(C)) {
      return store_tile<C>(params_, pipe_, work, warpgroup, o, softmax);
    } else {
      bool is_finite = true;
      kept_.join(pipe_, o, softmax);
      if (ends_tile<C>(work)) {
        is_finite = store_tile<C>(params_, pipe_, work, warpgroup, o, softmax);
        kept_.clear();
      } else {
        if constexpr (C.rule.max_logits) {
          store_max_logits<C>(params_, work, warpgroup, softmax);
        }
        kept_.keep(o);
      }
      clear<C>(o);  // else the compiler carries all of it past both
      return is_finite;
    }
  }

  const Params& params_;
  OutputPipe<C> pipe_;
  KeptRows<C> kept_;
  bool finite_ = true;  // whether everything that this thread stored was
};

}  // namespace strobe::sm90::forward
