// SPDX-License-Identifier: Apache-2.0
// The pipelined loop: a warpgroup's softmax of a block runs under its P V of the one before.
//
// One step, for a block while P V of the block before it (n + 1, or the last of the previous tile) is still to come:
//   1. take the turn; issue S = Q K(n)^T and O += P V; pass the turn
//   2. when S is there: release K; softmax of S, under P V and under the other warpgroups' GEMMs
//   3. when P V is done: release V; P = S as operand
// The pipeline runs on over tiles: the first block of a tile is scored and exponentiated under the last P V of the
// tile before, whose output is then stored.
// Masked blocks are at either end of the walk; the loop is one step function, peeled by trip count.
#pragma once

#include "kernels/sm90/forward/consume/steps.h"
#include "kernels/sm90/forward/store/tiles.h"
#include "kernels/sm90/forward/tile/assignment.h"

namespace strobe::sm90::forward {

template <Config C>
class PipelinedLoop : private Steps<C> {
 public:
  __device__ __forceinline__ PipelinedLoop(const Context<C>& context, int warpgroup)
      : Steps<C>(context, warpgroup), schedule_(context.schedule), store_(context, warpgroup) {
    WarpgroupOrder<C>::open(warpgroup);
  }

  /// Every tile of this CTA.
  __device__ __forceinline__ void run() {
    Scheduler<C> scheduler(params_, schedule_);
    Output o;
    Operand p;
    Softmax<C> softmax;
    TileWork open;  // the tile whose last P V is still to come
    bool is_open = false;
    Assignment next = next_assignment<C>({}, scheduler, params_, warpgroup());
    const auto advance = [&] { next = next_assignment<C>(next, scheduler, params_, warpgroup()); };
    const auto look_ahead = [&] {
      if constexpr (C.looks_ahead) {
        advance();
      }
    };
    while (next.exists) {
      const TileWork work = next.work;
      VisitedBlocks<C> walk(params_, next, warpgroup());
      const int n_begin = next.n_begin;
      if constexpr (has_key_tags(C)) {
        if (is_open && !walk.begins_own(*this, next)) {
          close(o, p, softmax, open);
          is_open = false;
        }
      }
      const int n_last = walk.first(*this, next);
      if (n_last < n_begin) {
        if (!has_key_tags(C) && is_open) {
          close(o, p, softmax, open);
          is_open = false;
        }
        pass_blocks(walk.count(work.n_begin, work.n_end));
        store_.without_keys(work, warpgroup());
        advance();
        continue;
      }
      if (!has_key_tags(C) && C.rule.chunked && is_open && work.n_end - 1 - n_last > C.stages) {
        close(o, p, softmax, open);
        is_open = false;
      }
      const Rules rules = is_open ? begin_behind(o, p, softmax, open, walk, work, n_begin, n_last, look_ahead)
                                  : begin(p, softmax, walk, work, n_begin, n_last, look_ahead);
      blocks(o, p, softmax, rules, walk, n_begin, n_last);
      end(walk, work, n_begin);
      open = work;
      is_open = true;
      if constexpr (!C.looks_ahead) {
        advance();
      }
    }
    if (is_open) {
      close(o, p, softmax, open);
    }
    store_.finish(schedule_, warpgroup());
  }

 private:
  using typename Steps<C>::Rules;
  using typename Steps<C>::Scores, typename Steps<C>::Output, typename Steps<C>::Operand;
  using Rings<C>::warpgroup, Rings<C>::wait_q, Rings<C>::wait_k, Rings<C>::wait_v;
  using Rings<C>::output_done, Rings<C>::release_q;
  using Rings<C>::pass_keys, Rings<C>::pass_last_keys, Rings<C>::pass_values, Rings<C>::pass_blocks;
  using Steps<C>::end_of_step, Steps<C>::issue_scores, Steps<C>::issue_output, Steps<C>::issue_both;
  using ScoreSteps<C>::probabilities, ScoreSteps<C>::first_softmax, ScoreSteps<C>::params_;
  using ScoreSteps<C>::find_text, ScoreSteps<C>::scores_arrived;
  using Steps<C>::accumulate_;

  // Blocks that this warpgroup lets pass at the start of a tile wait for V stages that it still holds: at most
  // `stages` of them may, or the ring locks up. Chunks may be further apart: then no tile stays open.
  static_assert(!C.rule.mask_right || C.rule.chunked ||
                (block_m(C) - kRowsPerWarpgroup + C.block_n - 1) / C.block_n <= C.stages);

 public:  // the parts of a tile: tile_loop.h
  /// The first block of a tile when no other is open.
  template <typename LookAhead>
  __device__ __forceinline__ Rules begin(Operand& p, Softmax<C>& softmax, VisitedBlocks<C>& walk, const TileWork& work,
                                         int n_begin, int n, const LookAhead& look_ahead) {
    Scores s;
    const auto bias = first_bias<C>(params_, work, warpgroup(), n);
    pass_blocks(walk.count(n + 1, work.n_end));
    wait_q();
    wait_k();
    WarpgroupOrder<C>::wait(warpgroup());
    ptx::wgmma_fence();
    issue_scores(s);
    WarpgroupOrder<C>::pass(warpgroup());
    const Rules rules = tile_rules<C>(params_, work, warpgroup());
    const auto text = find_text(rules, n, walk.is_shown(n));
    look_ahead();

    ptx::wgmma_wait_group<0>(s);
    scores_arrived();
    softmax = {};
    first_softmax(s, softmax, rules, n, bias, text);
    rules.dropout.to_operand(p, s, rules.dropout.draw(n));
    end_of_step(walk.has_before(n, n_begin));
    return rules;
  }

  /// The first block of `work`, as begin(), and the last P V of `open`.
  template <typename LookAhead>
  __device__ __forceinline__ Rules begin_behind(Output& o, Operand& p, Softmax<C>& softmax, const TileWork& open,
                                                VisitedBlocks<C>& walk, const TileWork& work, int n_begin, int n,
                                                const LookAhead& look_ahead) {
    Scores s;
    const auto bias = first_bias<C>(params_, work, warpgroup(), n);
    const int others = walk.count(n + 1, work.n_end);  // blocks of this tile that other warpgroups alone work on
    pass_keys(others);
    wait_q();
    wait_k();
    issue_both(s, o, p);
    const Rules rules = tile_rules<C>(params_, work, warpgroup());
    const auto text = find_text(rules, n, walk.is_shown(n));
    look_ahead();

    ptx::wgmma_wait_group<1>(s);
    scores_arrived();
    Softmax<C> next;
    first_softmax(s, next, rules, n, bias, text);
    const auto slices = rules.dropout.draw(n);
    end_of_step(walk.has_before(n, n_begin) || next.sums_are_negative());

    ptx::wgmma_wait_group<0>(o);
    output_done();
    pass_values(others);
    if constexpr (folds(C)) {  // joining segments takes registers that P gives back
      rules.dropout.to_operand(p, s, slices);
    }
    store(open, o, softmax);
    softmax = next;
    accumulate_ = false;
    if constexpr (!folds(C)) {
      rules.dropout.to_operand(p, s, slices);
    }
    return rules;
  }

  /// From the block after n down.
  __device__ __forceinline__ void blocks(Output& o, Operand& p, Softmax<C>& softmax, const Rules& rules,
                                         VisitedBlocks<C>& walk, int n_begin, int n) {
    n = walk.next(*this, n, n_begin);
    while (n >= max(rules.mask.last_full(), n_begin)) {
      n = step<true>(o, p, softmax, rules, walk, n_begin, n);
    }
    while (n >= max(rules.mask.first_full(), n_begin)) {
      n = step<false>(o, p, softmax, rules, walk, n_begin, n);
    }
    if constexpr (C.rule.mask_left) {
      while (n >= n_begin) {
        n = step<true>(o, p, softmax, rules, walk, n_begin, n);
      }
    }
  }

  /// Of what the tile's last P V does not need: that is begin_behind()'s or close()'s.
  __device__ __forceinline__ void end(VisitedBlocks<C>& walk, const TileWork& work, int n_begin) {
    if (ends_tile<C>(work)) {
      release_q();
    }
    if constexpr (C.own_begins) {
      pass_last_keys(walk.count(work.n_begin, n_begin));
    }
  }

 private:
  /// Block n; returns the next.
  template <bool masked>
  __device__ __forceinline__ int step(Output& o, Operand& p, Softmax<C>& softmax, const Rules& rules,
                                      VisitedBlocks<C>& walk, int n_begin, int n) {
    Scores s;
    const auto bias = rules.transform.fetch(n);
    const bool shown = walk.is_shown(n);
    const bool is_followed = walk.has_before(n, n_begin);
    issue_both(s, o, p);
    const auto text = find_text(rules, n, shown);

    ptx::wgmma_wait_group<1>(s);
    scores_arrived();
    const bool grew = probabilities<masked>(s, softmax, rules, n, bias, text);
    const auto slices = rules.dropout.draw(n);
    end_of_step(is_followed || softmax.sums_are_negative());

    ptx::wgmma_wait_group<0>(o);
    output_done();
    rules.dropout.to_operand(p, s, slices);
    if (grew) {
      rescale<C>(o, softmax.correction);
    }
    return walk.next(*this, n, n_begin);
  }

  /// The last P V of a tile that no other follows at once.
  __device__ __forceinline__ void close(Output& o, const Operand& p, Softmax<C>& softmax, const TileWork& open) {
    wait_v();
    ptx::wgmma_fence();
    issue_output(o, p);
    ptx::wgmma_wait_group<0>(o);
    output_done();
    pass_values(0);
    store(open, o, softmax);
    accumulate_ = false;
  }

  /// What became of `work`: its results, or those of a segment for the next one to join.
  __device__ __forceinline__ void store(const TileWork& work, Output& o, Softmax<C>& softmax) {
    softmax.finish();
    store_.put(work, warpgroup(), o, softmax);
  }

  const ScheduleOf<C>& schedule_;
  TileStore<C> store_;
};

}  // namespace strobe::sm90::forward
