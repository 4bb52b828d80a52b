// SPDX-License-Identifier: Apache-2.0
// A tile of 8-bit operands, by one warpgroup.
//
// In its turn a warpgroup issues Q K^T of a block and P V of the one before it. The softmax runs under P V and under
// the other warpgroups' products; P V's sums join O between the exponentials, which wait for other units.
#pragma once

#include "kernels/hopper/forward/eight_bit.h"
#include "kernels/hopper/forward/output.h"
#include "kernels/hopper/forward/rings.h"
#include "kernels/hopper/forward/tile_rules.h"
#include "kernels/hopper/tile/gemm.h"

namespace strobe::hopper::forward {

template <Config C>
__device__ __forceinline__ void issue_scores_8(ProductSum<C> (&sums)[C.block_n / 2], const Rings<C>& rings) {
  gemm_scores_8<C.operands, C.head_dim>(sums, rings.queries(), rings.keys());
  ptx::wgmma_commit_group();
}

/// Where P V goes: to sums of its own that join O block by block, exact where they are integers.
template <Config C>
class OutputSums {
 public:
  using Output = float[C.head_dim_v / 2];
  using Operand = typename EightBitSoftmax<C>::Operand;

  __device__ __forceinline__ OutputSums(Output& o, float*) : o_(o) { clear<C>(o); }

  __device__ __forceinline__ void issue(const Operand& p, const Rings<C>& rings) {
    gemm_output_8<C.operands, false>(block_, p, rings.values());
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void wait() { ptx::wgmma_wait_group<0>(block_); }

  /// After wait(), while the softmax has the block's factor.
  __device__ __forceinline__ void add(const EightBitSoftmax<C>& softmax, bool) {
    add_block<C>(o_, block_, softmax.block_factor);
  }
  __device__ __forceinline__ void finish() {}

 private:
  Output& o_;
  ProductSum<C> block_[C.head_dim_v / 2];
};

/// Float sums stay in O. The tensor cores keep 13 bits or so of a sum, so that each addition may cut off as much as
/// 2^-13 of it: after kKeysPerSum keys, 64 additions, a hundredth at most, where rounding to e4m3 changes a probability
/// by up to a sixteenth. Then they join float32 sums in shared memory.
template <Config C>
  requires(!sums_by_block(C))
class OutputSums<C> {
 public:
  using Output = float[C.head_dim_v / 2];
  using Operand = typename EightBitSoftmax<C>::Operand;

  /// `kept` is this warpgroup's, in shared memory.
  __device__ __forceinline__ OutputSums(Output& o, float* kept) : o_(o), kept_(kept + threadIdx.x % kWarpgroupSize) {
    clear<C>(o);
  }

  __device__ __forceinline__ void issue(const Operand& p, const Rings<C>& rings) {
    gemm_output_8<C.operands, true>(o_, p, rings.values());
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void wait() { ptx::wgmma_wait_group<0>(o_); }

  /// After wait(). Where `grew`, what was summed before is multiplied by the softmax's correction.
  __device__ __forceinline__ void add(const EightBitSoftmax<C>& softmax, bool grew) {
    if (grew) {
      rescale<C>(o_, softmax.correction);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        kept_factor_[r] *= softmax.correction[r];
      }
    }
    if (++blocks_ == kKeysPerSum / C.block_n) {
      finish();
      put_away();
      clear<C>(o_);
      blocks_ = 0;
    }
  }

  __device__ __forceinline__ void finish() {
    if (has_kept_) {
      take_back();
    }
  }

 private:
  static constexpr int kKeysPerSum = 2048;

  __device__ __forceinline__ void put_away() {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) {
      kept_[i * kWarpgroupSize] = o_[i];
    }
    has_kept_ = true;
    kept_factor_[0] = kept_factor_[1] = 1.0F;
  }

  __device__ __forceinline__ void take_back() {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) {
      o_[i] = __fmaf_rn(kept_[i * kWarpgroupSize], kept_factor_[i / 2 % kRowsPerThread], o_[i]);
    }
  }

  Output& o_;
  float* kept_;  // this thread's: every kWarpgroupSize-th
  float kept_factor_[kRowsPerThread] = {1.0F, 1.0F};
  int blocks_ = 0;
  bool has_kept_ = false;
};

/// Blocks from n down to the tile's first; O as it is to be divided by the row's sum.
template <Config C>
__device__ __forceinline__ void eight_bit_tile(float (&o)[C.head_dim_v / 2], EightBitSoftmax<C>& softmax,
                                               Rings<C>& rings, const Params& params, unsigned char* smem,
                                               const TileRules<C>& rules, const TileWork& work, int n) {
  using Softmax = EightBitSoftmax<C>;
  const int warpgroup = rings.warpgroup();
  const auto scales_after = [&](int blocks) -> const BlockScales<C>& {
    return *reinterpret_cast<const BlockScales<C>*>(smem + smem_plan(C).scales +
                                                    rings.wait_v_after(blocks) * scale_bytes(C));
  };
  const auto rules_again = [&] {
    TileWork again = work;
    asm volatile("" : "+r"(again.m_begin));  // worked out where they are wanted: there are no registers to keep them
    return tile_rules<C>(params, again, warpgroup);
  };
  ProductSum<C> sums[C.block_n / 2];
  OutputSums<C> output(o, reinterpret_cast<float*>(smem + smem_plan(C).kept + warpgroup * kept_bytes(C)));
  typename Softmax::Operand p;
  typename Softmax::Reference reference;
  softmax = {};
  softmax.begin(params, work, warpgroup);
  rings.wait_q();
  rings.wait_k();
  Turns<C>::wait(warpgroup);
  ptx::wgmma_fence();
  issue_scores_8<C>(sums, rings);
  Turns<C>::pass(warpgroup);
  ptx::wgmma_wait_group<0>(sums);
  rings.scores_done();
  {
    const auto& scales = scales_after(0);
    softmax.measure(reference, sums, scales, rules_again, rules.mask.needed(n), n);
    softmax.exponentiate(p, sums, reference, scales, [] {});
  }
#pragma unroll 1
  while (--n >= work.n_begin) {
    rings.wait_k();
    Turns<C>::wait(warpgroup);
    ptx::wgmma_fence();
    issue_scores_8<C>(sums, rings);
    output.issue(p, rings);
    Turns<C>::pass(warpgroup);
    const auto& scales = scales_after(1);

    ptx::wgmma_wait_group<1>(sums);
    rings.scores_done();
    const bool grew =
        softmax.measure(reference, sums, scales, rules_again, is_masked(C.rule) && rules.mask.needed(n), n);

    const auto take_output = [&] {
      output.wait();
      rings.output_done();
      output.add(softmax, grew);
    };
    if constexpr (sums_by_block(C)) {
      if (softmax.exponentiate(p, sums, reference, scales, take_output)) {
        rescale<C>(o, softmax.correction);
      }
    } else {
      take_output();
      softmax.exponentiate(p, sums, reference, scales, [] {});
    }
  }
  ptx::wgmma_fence();
  output.issue(p, rings);
  output.wait();
  rings.output_done();
  output.add(softmax, false);
  output.finish();
  rings.release_q();
  softmax.finish(params, work, warpgroup);
  if constexpr (C.rotate_back) {
    rotate_back<C>(o, params.eight_bit.v_signs);
  }
}

}  // namespace strobe::hopper::forward
