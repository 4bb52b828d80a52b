// SPDX-License-Identifier: Apache-2.0
// The serial loop: each block's scores, softmax and P V one after another. What overlaps is other warpgroups' work, and
// P takes the registers of S. Blocks may be hidden from one warpgroup alone.
#pragma once

#include "kernels/sm90/forward/consume/steps.h"
#include "kernels/sm90/forward/store/tiles.h"
#include "kernels/sm90/forward/tile/assignment.h"

namespace strobe::sm90::forward {

template <Config C>
class SerialLoop : private Steps<C> {
 public:
  __device__ __forceinline__ SerialLoop(const Context<C>& context, int warpgroup)
      : Steps<C>(context, warpgroup), schedule_(context.schedule), store_(context, warpgroup) {
    WarpgroupOrder<C>::open(warpgroup);
  }

  /// Every tile of this CTA.
  __device__ __forceinline__ void run() {
    Scheduler<C> scheduler(params_, schedule_);
    Output o;
    Operand p;
    Softmax<C> softmax;
    Assignment next = next_assignment<C>({}, scheduler, params_, warpgroup());
    const auto advance = [&] { next = next_assignment<C>(next, scheduler, params_, warpgroup()); };
    while (next.exists) {
      const TileWork work = next.work;
      VisitedBlocks<C> walk(params_, next, warpgroup());
      const int n_begin = next.n_begin;
      const int n_last = walk.first(*this, next);
      if (n_last < n_begin) {
        pass_blocks(walk.count(work.n_begin, work.n_end));
        store_.without_keys(work, warpgroup());
        advance();
        continue;
      }
      const Rules rules = begin(softmax, walk, work, n_last);
      blocks(o, p, softmax, rules, walk, n_begin, n_last);
      end(o, softmax, work);
      advance();
    }
    store_.finish(schedule_, warpgroup());
  }

 private:
  using typename Steps<C>::Rules;
  using typename Steps<C>::Scores, typename Steps<C>::Output, typename Steps<C>::Operand;
  using Rings<C>::warpgroup, Rings<C>::wait_q, Rings<C>::wait_k, Rings<C>::wait_v;
  using Rings<C>::output_done, Rings<C>::release_q, Rings<C>::pass_blocks;
  using ScoreSteps<C>::first_softmax, ScoreSteps<C>::find_text, ScoreSteps<C>::scores_arrived;
  using Steps<C>::issue_scores, Steps<C>::issue_output;
  using ScoreSteps<C>::params_;
  using Steps<C>::accumulate_;

 public:  // the parts of a tile: tile_loop.h
  /// A tile of which n is the last block that this warpgroup's rows see.
  __device__ __forceinline__ Rules begin(Softmax<C>& softmax, VisitedBlocks<C>& walk, const TileWork& work, int n) {
    const Rules rules = tile_rules<C>(params_, work, warpgroup());
    pass_blocks(walk.count(n + 1, work.n_end));
    softmax = {};
    wait_q();
    return rules;
  }

  /// From block n down.
  __device__ __forceinline__ void blocks(Output& o, Operand& p, Softmax<C>& softmax, const Rules& rules,
                                         VisitedBlocks<C>& walk, int n_begin, int n) {
    for (; walk.has(n); n = walk.next(*this, n, n_begin)) {
      if ((C.own_begins && n < n_begin) || !walk.is_own(n)) {
        pass_blocks(1);
        continue;
      }
      Scores s;
      const auto bias = rules.transform.fetch(n);
      if constexpr (!has_key_tags(C)) {
        wait_k();
      }
      WarpgroupOrder<C>::wait(warpgroup());
      ptx::wgmma_fence();
      issue_scores(s);
      const auto text = find_text(rules, n, walk.is_shown(n));
      ptx::wgmma_wait_group<0>(s);
      WarpgroupOrder<C>::pass(warpgroup());
      scores_arrived();
      if (first_softmax(s, softmax, rules, n, bias, text)) {
        rescale<C>(o, softmax.correction);
      }
      rules.dropout.to_operand(p, s, rules.dropout.draw(n));
      if (has_key_tags(C) && softmax.sums_are_negative()) {  // else ptxas adds later, and P has no registers of S
        wait_v();
      }
      wait_v();
      ptx::wgmma_fence();
      issue_output(o, p);
      ptx::wgmma_wait_group<0>(o);
      output_done();
    }
  }

  /// Its results, or those of a segment for the next one to join.
  __device__ __forceinline__ void end(Output& o, Softmax<C>& softmax, const TileWork& work) {
    if (ends_tile<C>(work)) {
      release_q();
    }
    softmax.finish();
    store_.put(work, warpgroup(), o, softmax);
    accumulate_ = false;
  }

 private:
  const ScheduleOf<C>& schedule_;
  TileStore<C> store_;
};

}  // namespace strobe::sm90::forward
