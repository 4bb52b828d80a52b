// SPDX-License-Identifier: Apache-2.0
// A tile of 8-bit operands, by one warpgroup.
//
// In its turn a warpgroup issues Q K^T of a block and P V of the one before it. The softmax runs under P V and under
// the other warpgroups' products; P V's sums join O between the exponentials, which wait for other units. Where
// registers do not hold as much at a time, one step comes after another.
#pragma once

#include "kernels/sm90/forward/consume/eight_bit_sums.h"
#include "kernels/sm90/forward/consume/rings.h"
#include "kernels/sm90/forward/store/output.h"
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

  /// Blocks from n down to the tile's first.
  __device__ __forceinline__ void run(const TileRules<C>& rules, int n) {
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
    Turns<C>::wait(rings_.warpgroup());
    issue_scores();
#pragma unroll 1
    while (true) {
      Turns<C>::pass(rings_.warpgroup());
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
      Turns<C>::wait(rings_.warpgroup());
      output_.multiply(p_, rings_, softmax_);
      rings_.output_done();
      if (--n < work_.n_begin) {
        break;
      }
      issue_scores();
    }
    Turns<C>::pass(rings_.warpgroup());
  }

  __device__ __forceinline__ void overlapped(const TileRules<C>& rules, int n) {
    Turns<C>::wait(rings_.warpgroup());
    issue_scores();
    Turns<C>::pass(rings_.warpgroup());
    ptx::wgmma_wait_group<0>(sums_);
    rings_.scores_done();
    {
      const BlockScales<C>& scales = scales_after(0);
      softmax_.measure(reference_, sums_, scales, rules_again(), rules.mask.needed(n), n);
      softmax_.exponentiate(p_, sums_, reference_, scales, [] {});
    }
#pragma unroll 1
    while (--n >= work_.n_begin) {
      Turns<C>::wait(rings_.warpgroup());
      issue_scores();
      output_.issue(p_, rings_);
      Turns<C>::pass(rings_.warpgroup());
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

/// Blocks of keys from n down to the tile's first, and O to memory.
template <Config C>
__device__ __forceinline__ void eight_bit_tile(float (&o)[C.head_dim_v / 2], EightBitSoftmax<C>& softmax,
                                               Rings<C>& rings, OutputPipe<C>& pipe, const Params& params,
                                               unsigned char* smem, const TileWork& work, int n) {
  EightBitTile<C> tile(o, softmax, rings, params, smem, work);
  tile.run(tile_rules<C>(params, work, rings.warpgroup()), n);
  const auto store = [&](const TileWork& of_tile) {
    tile.finish(of_tile);
    store_tile<C>(params, pipe, of_tile, rings.warpgroup(), o, softmax);
  };
  if constexpr (C.finds_work_again) {
    store(work_again<C>(params, work));
  } else {
    store(work);
  }
}

}  // namespace strobe::sm90::forward
