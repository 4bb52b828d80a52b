// SPDX-License-Identifier: Apache-2.0
// Half of the columns of dV or dK of a pair's 64 keys, by one warpgroup.
#pragma once

#include "kernels/sm90/backward/epilogue.h"
#include "kernels/sm90/backward/wide/steps.h"
#include "kernels/sm90/ptx/wgmma.h"
#include "kernels/sm90/tile/descriptor.h"

namespace strobe::sm90::backward {

template <Config C, WideRole role>
class WideSums {
 public:
  __device__ __forceinline__ WideSums(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                      WideBarriers<C>& barriers, int warpgroup)
      : maps_(maps), params_(params), smem_(smem), barriers_(barriers), warpgroup_(warpgroup) {
    if (warpgroup > 0) {
      piece_.advance();
    }
  }

  __device__ __forceinline__ void run(const Work& work) {
    Sums sums;
    unsigned char* last = nullptr;
    bool started = false;
    for_each_wide_step<C>(params_, work, [&](int, int) __attribute__((always_inline)) {
      last = smem_ + kPlan.pieces + piece_.stage * kPlan.piece_bytes;
      multiply(sums, started);
      started = true;
    });
    store(work, sums, last);
  }

 private:
  // With 512 threads to a CTA ptxas takes no WGMMA of more than 96 accumulators, whatever setmaxnreg says.
  static constexpr int kColumns = half_columns(C, role);
  static constexpr int kParts = kColumns > 192 ? 2 : 1;
  static constexpr int kPartColumns = kColumns / kParts;
  static constexpr int kPartBytes = tile_bytes(kRowsPerWarpgroup, kPartColumns);
  static_assert(kPartColumns % kPanelColumns == 0);
  using Sums = float[kParts][kPartColumns / 2];
  static constexpr WideSmemPlan kPlan = wide_smem_plan(C);

  /// Adds the product of a step: P^T dO or dS^T Q.
  __device__ __forceinline__ void multiply(Sums& sums, bool accumulate) {
    wait<C>(barriers_.scores_full[scores_.stage], scores_.parity);
    wait<C>(barriers_.piece_full[piece_.stage], piece_.parity);
    const Descriptor scores = descriptor_k_major(smem_ + kPlan.scores) + scores_.stage * (kPlan.scores_bytes >> 4);
    const Descriptor rows =
        descriptor_mn_major(smem_ + kPlan.pieces, C.block_m) + piece_.stage * (kPlan.piece_bytes >> 4);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C.block_m / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ptx::wgmma_ss_k_mn<C.rule.element>(sums[part], scores + k_major_step(step, kRowsPerWarpgroup),
                                           rows + (mn_major_step(step) + part * (kPartBytes >> 4)),
                                           step > 0 || accumulate ? 1 : 0);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::tie(sums[part]);
    }
    arrive<C>(barriers_.piece_empty[piece_.stage]);
    arrive<C>(barriers_.scores_empty[scores_.stage]);
    scores_.advance();
#pragma unroll
    for (int i = 0; i < kSumWarpgroups; ++i) {
      piece_.advance();
    }
  }

  /// Scaled and converted, by way of `rows`, the stage of the last piece, which this warpgroup alone read: each of its
  /// warps read all of it.
  __device__ __forceinline__ void store(const Work& work, const Sums& sums, unsigned char* rows) {
    constexpr bool kOfV = role == WideRole::probabilities;
    const float factor = kOfV ? value_gradient_factor<C>(params_) : score::gradient_scale<C.rule>(params_, work.k.used);
    const int row = work.n * block_n(C);
    bool finite = true;
    ptx::bar_sync(kWarpgroup + warpgroup_, kWarpgroupSize);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      finite = stage_rows<C.rule, kRowsPerWarpgroup>(sums[part], factor, work.k.used - row, rows + part * kPartBytes) &&
               finite;
    }
    cptx::fence_proxy_async(cptx::space_shared);
    ptx::bar_sync(kWarpgroup + warpgroup_, kWarpgroupSize);
    if (threadIdx.x % kWarpgroupSize == 0) {
      const SequenceStart start = key_start<C.rule>(params_, work, work.sequence, work.k.owned);
      store_rows<kColumns, kRowsPerWarpgroup>(maps_.sums, start, row, work.head_kv, rows, warpgroup_ * kColumns,
                                              existing_sum_columns<role>(params_));
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
    }
    if constexpr (is_masked(C.rule)) {
      repair(work, finite);
    }
  }

  /// Rows that are not finite, once both warpgroups have stored theirs.
  __device__ __forceinline__ void repair(const Work& work, bool finite) {
    if (threadIdx.x % kWarpgroupSize == 0) {
      cptx::cp_async_bulk_wait_group(cptx::n32_t<0>{});
    }
    const bool any = ptx::bar_red_or(kLastRead, kSumWarpgroups * kWarpgroupSize, !finite);
    if (any && warpgroup_ == 0) {
      repair_keys<C, role == WideRole::probabilities ? KeySide::v : KeySide::k>(params_, work, work.n * block_n(C));
    }
  }

  const RoleMaps<role> maps_;
  const Params& params_;
  unsigned char* smem_;
  WideBarriers<C>& barriers_;
  const int warpgroup_;
  RingPosition<C.ds_stages> scores_;
  RingPosition<C.do_stages> piece_;
};

}  // namespace strobe::sm90::backward
