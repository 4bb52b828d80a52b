// SPDX-License-Identifier: Apache-2.0
// A tile of 8-bit operands, by one warpgroup.
//
// In its turn a warpgroup issues Q K^T of a block and P V of the one before it. The softmax runs under P V and under
// the other warpgroups' products; P V's sums join O between the exponentials, which wait for other units. Where
// registers do not hold as much at a time, one step comes after another.
#pragma once

#include "kernels/sm90/forward/consume/eight_bit_sums.h"
#include "kernels/sm90/forward/consume/rings.h"
#include "kernels/sm90/forward/store/tiles.h"
#include "kernels/sm90/forward/tile/blocks.h"
#include "kernels/sm90/forward/tile/rules.h"
#include "kernels/sm90/tile/gemm.h"

namespace strobe::sm90::forward {

/// A tile's numbers once more, from its place alone.
template <Config C>
__device__ __forceinline__ TileWork work_again(const Params& params, const TileWork& work) {
  Tile tile = work.tile;
  asm volatile("" : "+r"(tile.m), "+r"(tile.head), "+r"(tile.sequence));
  return tile_work<C>(params, tile);
}

template <Config C>
class EightBitTile {
 public:
  using Output = float[C.head_dim_v / 2];

  __device__ __forceinline__ EightBitTile(Output& o, EightBitSoftmax<C>& softmax, Rings<C>& rings, const Params& params,
                                          unsigned char* smem, const TileWork& work)
      : output_(o, params, smem, rings.warpgroup()),
        o_(o),
        softmax_(softmax),
        rings_(rings),
        params_(params),
        smem_(smem),
        work_(work) {
    softmax = {};
    softmax.begin(params, work, rings.warpgroup());
    rings.wait_q();
  }

  /// From block n down.
  __device__ __forceinline__ void blocks(const TileRules<C>& rules, int n) {
    if constexpr (C.loop == Loop::eight_bit_serial) {
      serial(rules, n);
    } else {
      overlapped(rules, n);
    }
  }

  /// O as it is to be divided by the rows' sums.
  __device__ __forceinline__ void finish(const TileWork& work) {
    rings_.release_q();
    softmax_.finish(params_, work, rings_.warpgroup());
    rotate_back<C>(o_, params_.eight_bit.v_signs);
  }

 private:
  using Softmax = EightBitSoftmax<C>;

  __device__ __forceinline__ void serial(const TileRules<C>& rules, int n) {
    WarpgroupOrder<C>::wait(rings_.warpgroup());
    issue_scores();
#pragma unroll 1
    while (true) {
      WarpgroupOrder<C>::pass(rings_.warpgroup());
      const BlockScales<C>& scales = scales_after(0);
      ptx::wgmma_wait_group<0>(sums_);
      rings_.scores_done();
      const bool grew = softmax_.measure(reference_, sums_, scales, rules_again(), rules.mask.needed(n), n);
      if constexpr (!sums_by_block(C)) {
        if (grew) {
          rescale<C>(o_, softmax_.correction);
        }
      }
      if (softmax_.exponentiate(p_, sums_, reference_, scales, [] {})) {
        rescale<C>(o_, softmax_.correction);
      }
      WarpgroupOrder<C>::wait(rings_.warpgroup());
      output_.multiply(p_, rings_, softmax_);
      rings_.output_done();
      if (--n < work_.n_begin) {
        break;
      }
      issue_scores();
    }
    WarpgroupOrder<C>::pass(rings_.warpgroup());
  }

  __device__ __forceinline__ void overlapped(const TileRules<C>& rules, int n) {
    WarpgroupOrder<C>::wait(rings_.warpgroup());
    issue_scores();
    WarpgroupOrder<C>::pass(rings_.warpgroup());
    ptx::wgmma_wait_group<0>(sums_);
    rings_.scores_done();
    {
      const BlockScales<C>& scales = scales_after(0);
      softmax_.measure(reference_, sums_, scales, rules_again(), rules.mask.needed(n), n);
      softmax_.exponentiate(p_, sums_, reference_, scales, [] {});
    }
#pragma unroll 1
    while (--n >= work_.n_begin) {
      WarpgroupOrder<C>::wait(rings_.warpgroup());
      issue_scores();
      output_.issue(p_, rings_);
      WarpgroupOrder<C>::pass(rings_.warpgroup());
      const BlockScales<C>& scales = scales_after(1);
      ptx::wgmma_wait_group<1>(sums_);
      rings_.scores_done();
      const bool grew = softmax_.measure(reference_, sums_, scales, rules_again(), masked(rules, n), n);
      finish_block(scales, grew);
    }
    ptx::wgmma_fence();
    output_.issue(p_, rings_);
    take_output(false);
    output_.finish();
  }

  /// P of this block, and before it P V of the one before: integers' while exponentials are on their way.
  __device__ __forceinline__ void finish_block(const BlockScales<C>& scales, bool grew) {
    if constexpr (sums_by_block(C)) {
      if (softmax_.exponentiate(p_, sums_, reference_, scales, [&] { take_output(grew); })) {
        rescale<C>(o_, softmax_.correction);
      }
    } else {
      take_output(grew);
      softmax_.exponentiate(p_, sums_, reference_, scales, [] {});
    }
  }

  __device__ __forceinline__ void take_output(bool grew) {
    output_.wait();
    rings_.output_done();
    output_.add(softmax_, grew);
  }

  __device__ __forceinline__ void issue_scores() {
    rings_.wait_k();
    ptx::wgmma_fence();
    gemm_scores_8<C.operands, C.head_dim>(sums_, rings_.queries(), rings_.keys());
    ptx::wgmma_commit_group();
  }

  /// Of the block whose V comes `blocks` after the next.
  __device__ __forceinline__ const BlockScales<C>& scales_after(int blocks) {
    return *reinterpret_cast<const BlockScales<C>*>(smem_ + smem_plan(C).scales +
                                                    rings_.wait_v_after(blocks) * scale_bytes(C));
  }

  __device__ __forceinline__ static bool masked(const TileRules<C>& rules, int n) {
    return is_masked(C.rule) && rules.mask.needed(n);
  }

  __device__ __forceinline__ auto rules_again() const {
    return [this] {
      if constexpr (C.finds_work_again) {
        return tile_rules<C>(params_, work_again<C>(params_, work_), rings_.warpgroup());
      } else {
        TileWork again = work_;
        asm volatile("" : "+r"(again.m_begin));  // the rules are not to be kept from block to block
        return tile_rules<C>(params_, again, rings_.warpgroup());
      }
    };
  }

  OutputSums<C> output_;
  ProductSum<C> sums_[C.block_n / 2];
  typename Softmax::Operand p_;
  typename Softmax::Reference reference_;
  Output& o_;
  Softmax& softmax_;
  Rings<C>& rings_;
  const Params& params_;
  unsigned char* smem_;
  const TileWork& work_;
};

template <Config C>
class EightBitLoop : private Rings<C> {
 public:
  __device__ __forceinline__ EightBitLoop(const Context<C>& context, int warpgroup)
      : Rings<C>(context, warpgroup),
        params_(context.params),
        schedule_(context.schedule),
        store_(context, warpgroup),
        smem_(context.smem) {
    WarpgroupOrder<C>::open(warpgroup);
  }

  /// Every tile of this CTA.
  __device__ __forceinline__ void run() {
    Scheduler<C> scheduler(params_, schedule_);
    Output o;
    EightBitSoftmax<C> softmax;
    Assignment next = next_assignment<C>({}, scheduler, params_, warpgroup());
    const auto advance = [&] { next = next_assignment<C>(next, scheduler, params_, warpgroup()); };
    while (next.exists) {
      const TileWork work = next.work;
      BlockWalk<C> walk(params_, work, warpgroup());
      const int n_begin = next.n_begin;
      const int n_end = walk.own_end(next.n_end);
      if (n_end <= n_begin) {
        pass_blocks(walk.count(work.n_begin, work.n_end));
        if (C.loop == Loop::eight_bit_serial && work.n_begin < work.n_end) {
          WarpgroupOrder<C>::skip(warpgroup());  // the turn of the last P V
        }
        store_.without_keys(work, warpgroup());
        advance();
        continue;
      }
      pass_blocks(walk.count(n_end, work.n_end));
      tile(o, softmax, work, n_end - 1);
      advance();
    }
    store_.finish(schedule_, warpgroup());
  }

 private:
  using Output = float[C.head_dim_v / 2];
  using Rings<C>::warpgroup, Rings<C>::pass_blocks;

  /// A tile, from block n down.
  __device__ __forceinline__ void tile(Output& o, EightBitSoftmax<C>& softmax, const TileWork& work, int n) {
    EightBitTile<C> tile(o, softmax, *this, params_, smem_, work);
    tile.blocks(tile_rules<C>(params_, work, warpgroup()), n);
    end(tile, o, softmax, work);
  }

 public:  // the parts of a tile: tile_loop.h
  using Tile = EightBitTile<C>;

  __device__ __forceinline__ void end(Tile& tile, Output& o, EightBitSoftmax<C>& softmax, const TileWork& work) {
    const auto store = [&](const TileWork& of_tile) {
      tile.finish(of_tile);
      store_.put(of_tile, warpgroup(), o, softmax);
    };
    if constexpr (C.finds_work_again) {
      store(work_again<C>(params_, work));
    } else {
      store(work);
    }
  }

 private:
  const Params& params_;
  const ScheduleOf<C>& schedule_;
  TileStore<C> store_;
  unsigned char* smem_;
};

}  // namespace strobe::sm90::forward
