// SPDX-License-Identifier: Apache-2.0
// 8-bit operands: where P V goes before it is O.
#pragma once

#include "kernels/sm90/forward/consume/eight_bit_softmax.h"
#include "kernels/sm90/forward/consume/rings.h"
#include "kernels/sm90/forward/store/accumulator.h"
#include "kernels/sm90/forward/store/kept.h"
#include "kernels/sm90/tile/gemm.h"

namespace strobe::sm90::forward {

/// To sums of its own that join O block by block, exact as they are integers.
template <Config C>
class OutputSums {
 public:
  using Output = float[C.head_dim_v / 2];
  using Operand = typename EightBitSoftmax<C>::Operand;

  __device__ __forceinline__ OutputSums(Output& o, const Params&, unsigned char*, int) : o_(o) { clear<C>(o); }

  __device__ __forceinline__ void issue(const Operand& p, const Rings<C>& rings) {
    gemm_output_8<C.operands, false, C.head_dim_v>(block_, p, rings.values());
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

/// Serial loops: sums of P V that join O block by block, of both elements, in pieces of 64 columns, of which one is
/// computed while the one before joins O.
template <Config C>
  requires(C.loop == Loop::eight_bit_serial)
class OutputSums<C> {
 public:
  using Output = float[C.head_dim_v / 2];
  using Operand = typename EightBitSoftmax<C>::Operand;

  __device__ __forceinline__ OutputSums(Output& o, const Params&, unsigned char*, int) : o_(o) { clear<C>(o); }

  __device__ __forceinline__ void multiply(const Operand& p, const Rings<C>& rings, const EightBitSoftmax<C>& softmax) {
    Piece pieces[2];
    issue(pieces[0], p, rings, 0);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      Piece& piece = pieces[i % 2];
      if (i + 1 < kPieces) {
        issue(pieces[(i + 1) % 2], p, rings, i + 1);
        ptx::wgmma_wait_group<1>(piece);
      } else {
        ptx::wgmma_wait_group<0>(piece);
      }
#pragma unroll
      for (int j = 0; j < kRegisters; ++j) {
        float& sum = o_[i * kRegisters + j];
        if constexpr (sums_by_block(C)) {
          sum = __fmaf_rn(static_cast<float>(piece[j]), softmax.block_factor[j / 2 % kRowsPerThread], sum);
        } else {
          sum += piece[j];
        }
      }
    }
  }

 private:
  static constexpr int kColumns = 64;
  static constexpr int kRegisters = kColumns / 2;
  static constexpr int kPieces = C.head_dim_v / kColumns;
  using Piece = ProductSum<C>[kRegisters];

  __device__ __forceinline__ static void issue(Piece& piece, const Operand& p, const Rings<C>& rings, int i) {
    ptx::wgmma_fence();
    gemm_output_8<C.operands, false, C.head_dim_v>(piece, p, rings.values() + (i * kColumns * kPanelRowBytes >> 4));
    ptx::wgmma_commit_group();
  }

  Output& o_;
};

/// Float sums stay in O. The tensor cores keep 13 bits or so of a sum, so that each addition may cut off as much as
/// 2^-13 of it: after kFloat8SumKeys keys, 64 additions, a hundredth at most, where rounding to e4m3 changes a
/// probability by up to a sixteenth. Then they join float32 sums in memory.
template <Config C>
  requires(!sums_by_block(C) && C.loop == Loop::eight_bit)
class OutputSums<C> {
 public:
  using Output = float[C.head_dim_v / 2];
  using Operand = typename EightBitSoftmax<C>::Operand;

  __device__ __forceinline__ OutputSums(Output& o, const Params& params, unsigned char* smem, int warpgroup)
      : o_(o), kept_(params, smem, warpgroup) {
    clear<C>(o);
  }

  __device__ __forceinline__ void issue(const Operand& p, const Rings<C>& rings) {
    gemm_output_8<C.operands, true, C.head_dim_v>(o_, p, rings.values());
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
    if (++blocks_ == kFloat8SumKeys / C.block_n) {
      finish();
      kept_.put(o_);
      has_kept_ = true;
      kept_factor_[0] = kept_factor_[1] = 1.0F;
      clear<C>(o_);
      blocks_ = 0;
    }
  }

  __device__ __forceinline__ void finish() {
    if (has_kept_) {
      kept_.take([&](float kept, int i) { o_[i] = __fmaf_rn(kept, kept_factor_[i / 2 % kRowsPerThread], o_[i]); });
    }
  }

 private:
  Output& o_;
  KeptOutput<C> kept_;
  float kept_factor_[kRowsPerThread] = {1.0F, 1.0F};
  int blocks_ = 0;
  bool has_kept_ = false;
};

}  // namespace strobe::sm90::forward
