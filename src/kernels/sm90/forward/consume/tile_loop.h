// SPDX-License-Identifier: Apache-2.0
// The consumer's side: each warpgroup holds 64 rows of Q and walks over the key blocks from right to left.
//
// One step of the two-stage pipeline, for a block while P V of the block before it (n + 1, or the last of the previous
// tile) is still to come:
//   1. take the turn; issue S = Q K(n)^T and O += P V; pass the turn
//   2. when S is there: release K; softmax of S, under P V and under the other warpgroups' GEMMs
//   3. when P V is done: release V; P = S as operand
// The pipeline runs on over tiles: the first block of a tile is scored and exponentiated under the last P V of the
// tile before, whose output is then stored.
// Masked blocks are at either end of the walk; the loop is one step function, peeled by trip count.
#pragma once

#include "kernels/score/online_softmax.h"
#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/consume/eight_bit.h"
#include "kernels/sm90/forward/consume/rings.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/store/empty.h"
#include "kernels/sm90/forward/store/joined.h"
#include "kernels/sm90/forward/store/repair.h"
#include "kernels/sm90/forward/tile/assignment.h"
#include "kernels/sm90/forward/tile/blocks.h"
#include "kernels/sm90/forward/tile/rules.h"
#include "kernels/sm90/tile/gemm.h"

namespace strobe::sm90::forward {

template <Config C>
class Consumer : private Rings<C> {
 public:
  using Scores = float[C.block_n / 2];
  using Output = float[C.head_dim_v / 2];
  using Operand = uint32_t[C.block_n * operand_bytes(C) / 32][4];

  __device__ __forceinline__ Consumer(const Context<C>& context, int warpgroup)
      : Rings<C>(context, warpgroup),
        params_(context.params),
        schedule_(context.schedule),
        pipe_(context.o, context.smem, warpgroup),
        kept_(context.params, context.smem, warpgroup),
        smem_(context.smem) {
    Turns<C>::open(warpgroup);
  }

  /// Every tile of this CTA.
  __device__ __forceinline__ void run() {
    Scheduler<C> scheduler(params_.tiles, params_.sequences, schedule_);
    Output o;
    Operand p;
    SoftmaxOf<C> softmax;
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
      BlockWalk<C> walk(params_, work);
      const int n_begin = next.n_begin;
      const int n_end = walk.own_end(next.n_end, warpgroup());
      if (n_end <= n_begin) {
        if constexpr (C.loop == Loop::pipelined) {
          if (is_open) {
            close(o, p, softmax, open);
            is_open = false;
          }
        }
        pass_blocks(walk.count(work.n_begin, work.n_end));
        if (C.loop == Loop::eight_bit_serial && work.n_begin < work.n_end) {
          Turns<C>::skip(warpgroup());  // that of the last P V
        }
        if (ends_tile<C>(work)) {
          store_without_keys<C>(params_, pipe_, work, warpgroup());
        }
        advance();
        continue;
      }
      if constexpr (eight_bit(C)) {
        pass_blocks(walk.count(n_end, work.n_end));
        eight_bit_tile<C>(o, softmax, *this, pipe_, params_, smem_, work, n_end - 1);
        advance();
      } else if constexpr (C.loop == Loop::serial) {
        serial_steps(o, p, softmax, walk, work, n_begin, n_end - 1);
        advance();
      } else {
        if (C.rule.chunked && is_open && work.n_end - n_end > C.stages) {
          close(o, p, softmax, open);
          is_open = false;
        }
        const Rules rules = is_open ? cross_step(o, p, softmax, open, walk, work, n_begin, n_end - 1, look_ahead)
                                    : first_step(p, softmax, walk, work, n_begin, n_end - 1, look_ahead);
        remaining_steps(o, p, softmax, rules, walk, n_begin, n_end - 1);
        if (ends_tile<C>(work)) {
          release_q();
        }
        open = work;
        is_open = true;
        if constexpr (C.own_begins) {
          pass_last_keys(walk.count(work.n_begin, n_begin));
        }
        if constexpr (!C.looks_ahead) {
          advance();
        }
      }
    }
    if constexpr (C.loop == Loop::pipelined) {
      if (is_open) {
        close(o, p, softmax, open);
      }
    }
    if constexpr (C.schedule == Schedule::sorted || (kSplits<C> && C.rule.varlen)) {
      clear_unused_rows<C>(params_, warpgroup());
    }
    pipe_.finish();
    if constexpr (is_masked(C.rule) && !eight_bit(C)) {
      if (!__all_sync(kFullWarp, finite_)) {
        repair_rows<C>(params_, schedule_, warpgroup());
      }
    }
  }

 private:
  using Rings<C>::warpgroup, Rings<C>::queries, Rings<C>::keys, Rings<C>::values;
  using Rings<C>::wait_q, Rings<C>::wait_k, Rings<C>::wait_v;
  using Rings<C>::scores_done, Rings<C>::output_done, Rings<C>::release_q;
  using Rings<C>::wait_bias, Rings<C>::bias_done;
  using Rings<C>::pass_keys, Rings<C>::pass_last_keys, Rings<C>::pass_values, Rings<C>::pass_blocks;

  static constexpr SmemPlan kPlan = smem_plan(C);
  using Rules = TileRules<C>;

  // Blocks that this warpgroup lets pass at the start of a tile wait for V stages that it still holds: at most
  // `stages` of them may, or the ring locks up. Chunks may be further apart: then no tile stays open.
  static_assert(!C.rule.mask_right || C.rule.chunked ||
                (block_m(C) - kRowsPerWarpgroup + C.block_n - 1) / C.block_n <= C.stages);

  static_assert(!C.own_begins || (C.rule.mask_left && own_begins_fit(C)));
  static_assert(!C.relative_alibi || C.rule.alibi);
  static_assert(eight_bit(C) == (C.loop == Loop::eight_bit || C.loop == Loop::eight_bit_serial));

  // -- Schedule -------------------------------------------------------------------------------------------------------

  /// The first block of a tile when no other is open.
  template <typename LookAhead>
  __device__ __forceinline__ Rules first_step(Operand& p, Softmax<C>& softmax, BlockWalk<C>& walk, const TileWork& work,
                                              int n_begin, int n, const LookAhead& look_ahead) {
    Scores s;
    const auto bias = first_bias<C>(params_, work, warpgroup(), n);
    pass_blocks(walk.count(n + 1, work.n_end));
    wait_q();
    wait_k();
    Turns<C>::wait(warpgroup());
    ptx::wgmma_fence();
    issue_scores(s);
    Turns<C>::pass(warpgroup());
    const Rules rules = tile_rules<C>(params_, work, warpgroup());
    look_ahead();

    ptx::wgmma_wait_group<0>(s);
    scores_done();
    softmax = {};
    first_softmax(s, softmax, rules, n, bias);
    rules.dropout.to_operand(p, s, rules.dropout.draw(n));
    end_of_step(walk.has_before(n, n_begin));
    return rules;
  }

  /// The first block of `work`, as first_step(), and the last P V of `open`.
  template <typename LookAhead>
  __device__ __forceinline__ Rules cross_step(Output& o, Operand& p, Softmax<C>& softmax, const TileWork& open,
                                              BlockWalk<C>& walk, const TileWork& work, int n_begin, int n,
                                              const LookAhead& look_ahead) {
    Scores s;
    const auto bias = first_bias<C>(params_, work, warpgroup(), n);
    const int others = walk.count(n + 1, work.n_end);  // blocks of this tile that other warpgroups alone work on
    pass_keys(others);
    wait_q();
    wait_k();
    issue_both(s, o, p);
    const Rules rules = tile_rules<C>(params_, work, warpgroup());
    look_ahead();

    ptx::wgmma_wait_group<1>(s);
    scores_done();
    Softmax<C> next;
    first_softmax(s, next, rules, n, bias);
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
  __device__ __forceinline__ void remaining_steps(Output& o, Operand& p, Softmax<C>& softmax, const Rules& rules,
                                                  BlockWalk<C>& walk, int n_begin, int n) {
    n = walk.before(n);
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

  /// Block n; returns the next.
  template <bool masked>
  __device__ __forceinline__ int step(Output& o, Operand& p, Softmax<C>& softmax, const Rules& rules,
                                      BlockWalk<C>& walk, int n_begin, int n) {
    Scores s;
    const auto bias = rules.transform.fetch(n);
    const int next = walk.before(n);
    issue_both(s, o, p);

    ptx::wgmma_wait_group<1>(s);
    scores_done();
    const bool grew = probabilities<masked>(s, softmax, rules, n, bias);
    const auto slices = rules.dropout.draw(n);
    end_of_step(next >= n_begin || softmax.sums_are_negative());

    ptx::wgmma_wait_group<0>(o);
    output_done();
    rules.dropout.to_operand(p, s, slices);
    if (grew) {
      rescale<C>(o, softmax.correction);
    }
    return next;
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
    finite_ &= store_work<C>(params_, pipe_, kept_, work, warpgroup(), o, softmax);
  }

  /// A tile without the two-stage pipeline: each block's scores, softmax and P V one after another. What overlaps is
  /// other warpgroups' work, and P takes the registers of S. Blocks may be hidden from this warpgroup alone.
  __device__ __forceinline__ void serial_steps(Output& o, Operand& p, Softmax<C>& softmax, BlockWalk<C>& walk,
                                               const TileWork& work, int n_begin, int n) {
    const Rules rules = tile_rules<C>(params_, work, warpgroup());
    pass_blocks(walk.count(n + 1, work.n_end));
    softmax = {};
    wait_q();
    for (; walk.has(n); n = walk.before(n)) {
      if ((C.own_begins && n < n_begin) || !walk.is_own(n, warpgroup())) {
        pass_blocks(1);
        continue;
      }
      Scores s;
      const auto bias = rules.transform.fetch(n);
      wait_k();
      Turns<C>::wait(warpgroup());
      ptx::wgmma_fence();
      issue_scores(s);
      ptx::wgmma_wait_group<0>(s);
      Turns<C>::pass(warpgroup());
      scores_done();
      if (first_softmax(s, softmax, rules, n, bias)) {
        rescale<C>(o, softmax.correction);
      }
      rules.dropout.to_operand(p, s, rules.dropout.draw(n));
      wait_v();
      ptx::wgmma_fence();
      issue_output(o, p);
      ptx::wgmma_wait_group<0>(o);
      output_done();
    }
    if (ends_tile<C>(work)) {
      release_q();
    }
    store(work, o, softmax);
    accumulate_ = false;
  }

  // -- Its parts ------------------------------------------------------------------------------------------------------

  /// Waiting for the next K here, not when it is used, ends a basic block: else ptxas moves the wait for P V up, above
  /// the exponentials that it should run under, and the additions of the sums down.
  __device__ __forceinline__ void end_of_step(bool more) {
    if (more) {
      wait_k();
    }
  }

  __device__ __forceinline__ void issue_scores(Scores& s) {
    gemm_scores<C.rule.element, C.head_dim>(s, queries(), keys());
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_output(Output& o, const Operand& p) {
    gemm_output<C.rule.element>(o, p, values(), accumulate_ ? 1 : 0);
    ptx::wgmma_commit_group();
    accumulate_ = true;
  }

  /// S = Q K^T of a block and P V of the one before, in this warpgroup's turn. V may arrive while Q K^T runs.
  __device__ __forceinline__ void issue_both(Scores& s, Output& o, const Operand& p) {
    if constexpr (!kPlain<C>) {
      wait_v();
    }
    Turns<C>::wait(warpgroup());
    ptx::wgmma_fence();
    issue_scores(s);
    if constexpr (kPlain<C>) {
      wait_v();
    }
    issue_output(o, p);
    Turns<C>::pass(warpgroup());
  }

  /// Scores become probabilities. True if the maximum grew.
  template <bool masked, typename Bias>
  __device__ __forceinline__ bool probabilities(Scores& s, Softmax<C>& softmax, const Rules& rules, int n,
                                                const Bias& bias) {
    if constexpr (!masked && score::caps_in_softmax(C.rule)) {
      return softmax.capped_step(s, params_.score);
    }
    const score::RowNumbers origins = transform<!masked>(s, rules, n, bias);
    if constexpr (masked) {
      rules.mask.apply(s, n);
    }
    return soften(s, softmax, origins);
  }

  /// Scores of block n, by all that comes before masks and softmax. `bias`: what was fetched of it.
  template <bool all_visible, typename Bias>
  __device__ __forceinline__ score::RowNumbers transform(Scores& s, const Rules& rules, int n, const Bias& bias) {
    if constexpr (C.bias_stages > 0) {
      return rules.transform.template apply_as<C.relative_alibi, all_visible>(s, n, wait_bias());
    } else {
      return rules.transform.template apply_as<C.relative_alibi, all_visible>(s, n, bias);
    }
  }

  /// The bias's stage is given back when the softmax has looked at all scores, not where its last load was issued: an
  /// arrival at a barrier may pass a load that waits for shared memory.
  __device__ __forceinline__ bool soften(Scores& s, Softmax<C>& softmax, const score::RowNumbers& origins) {
    const auto on_arrival = [&]() __attribute__((always_inline)) {
      if constexpr (C.bias_stages > 0) {
        bias_done();
      }
    };
    const float scale = score::remaining_scale<C.rule>(params_.score);
    if constexpr (C.relative_alibi) {
      return softmax.step(s, scale, origins, on_arrival);
    } else {
      return softmax.step(s, scale, on_arrival);
    }
  }

  /// Of a block that may be masked.
  template <typename Bias>
  __device__ __forceinline__ bool first_softmax(Scores& s, Softmax<C>& softmax, const Rules& rules, int n,
                                                const Bias& bias) {
    const score::RowNumbers origins = transform<false>(s, rules, n, bias);
    if (rules.mask.needed(n)) {
      rules.mask.apply(s, n);
    }
    return soften(s, softmax, origins);
  }

  const Params& params_;
  const ScheduleOf<C>& schedule_;
  OutputPipe<C> pipe_;
  KeptRows<C> kept_;
  unsigned char* smem_;
  bool finite_ = true;       // whether everything that this thread stored was
  bool accumulate_ = false;  // whether O holds earlier blocks of its tile
};

}  // namespace strobe::sm90::forward
