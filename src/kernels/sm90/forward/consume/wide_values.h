// SPDX-License-Identifier: Apache-2.0
// Wide loops: the ring of V as the warpgroups that hold O read it.
//
// Where V is K's first columns, those lie in its stages, 128 columns each. Scores are computed from them, and P V a
// block later; the warpgroup of the last product that reads a stage gives it back.
#pragma once

#include "kernels/sm90/forward/consume/wide_message.h"
#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/tile/descriptor.h"

namespace strobe::sm90::forward {

/// Columns of Q that pass to registers by one stage.
template <Config C>
constexpr int kQueryColumns = C.values_in_keys ? kSharedColumns : kPanelColumns;

/// Stages that a tile's Q passes through on its way to registers.
template <Config C>
constexpr int kQueryPieces = (C.register_columns + kQueryColumns<C> - 1) / kQueryColumns<C>;

/// A stage that threads filled, themselves or by cp.async, is full: WGMMAs of this warp may read it.
template <Config C>
__device__ __forceinline__ void see_copies() {
  if constexpr (C.keys == KeySource::page_rows || C.keys == KeySource::rows_in_format) {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
  }
}

/// Which of the warpgroups that hold O this thread is in: found where it is wanted, as they have no register to spare.
template <Config C>
__device__ __forceinline__ int output_warpgroup() {
  return static_cast<int>(threadIdx.x) / kWarpgroupSize - (C.producer_warpgroups + C.consumer_warpgroups);
}

/// Columns of O that a warpgroup accumulates by one WGMMA. With 512 threads to a CTA ptxas takes none of more than 96
/// accumulators, whatever setmaxnreg says.
template <Config C>
constexpr int kOutputParts = output_columns(C) > 192 ? 2 : 1;
template <Config C>
constexpr int kPartColumns = output_columns(C) / kOutputParts<C>;

/// V of one warpgroup that holds O: a stage has all columns of a block.
template <Config C>
class ValueRing {
 public:
  __device__ __forceinline__ ValueRing(const Context<C>& context, int warpgroup) : barriers_(context.barriers) {
    v_ = descriptor_mn_major(context.smem + kPlan.v, C.block_n);
    for (int before = 0; before < warpgroup; ++before) {
      at_.advance();
    }
  }

  /// O's first column of a part.
  __device__ __forceinline__ int column(int part) const {
    return output_warpgroup<C>() * output_columns(C) + part * kPartColumns<C>;
  }

  __device__ __forceinline__ void begin_tile() {}
  __device__ __forceinline__ void wait_part(int part) {
    if (part == 0) {
      wait<C>(barriers_.v_full[at_.stage], at_.parity);
      see_copies<C>();
    }
  }
  __device__ __forceinline__ Descriptor values(int part) const {
    return v_ + (at_.stage * (kPlan.v_bytes >> 4) + part * (tile_bytes(C.block_n, kPartColumns<C>) >> 4));
  }

  /// On from this part, when its products are issued: the stage that they read, or -1 where other parts lie there, too.
  __device__ __forceinline__ int next_part(int part) {
    if (part + 1 < kOutputParts<C>) {
      return -1;
    }
    const int stage = at_.stage;
#pragma unroll
    for (int i = 0; i < C.output_warpgroups; ++i) {
      at_.advance();
    }
    return stage;
  }
  __device__ __forceinline__ void give_back(int stage) {
    if (stage >= 0) {
      arrive<C>(barriers_.v_empty[stage]);
    }
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  Barriers<C>& barriers_;
  Descriptor v_;  // of stage 0
  RingPosition<C.stages> at_;
};

/// The same where V is K's first columns: of each block the warpgroups have stages in turns.
template <Config C>
  requires(C.values_in_keys)
class ValueRing<C> {
 public:
  __device__ __forceinline__ ValueRing(const Context<C>& context, int warpgroup) : barriers_(context.barriers) {
    v_ = descriptor_mn_major(context.smem + kPlan.v, C.block_n);
    skip(warpgroup);
  }

  __device__ __forceinline__ int column(int part) const {
    return (part * C.output_warpgroups + output_warpgroup<C>()) * kSharedColumns;
  }

  /// Past the stages that Q passed through.
  __device__ __forceinline__ void begin_tile() { skip(kQueryPieces<C>); }
  __device__ __forceinline__ void wait_part(int) {
    wait<C>(barriers_.v_full[at_.stage], at_.parity);
    see_copies<C>();
  }
  __device__ __forceinline__ Descriptor values(int) const { return v_ + at_.stage * (kPlan.v_bytes >> 4); }

  __device__ __forceinline__ int next_part(int) {
    const int stage = at_.stage;
    skip(C.output_warpgroups);
    return stage;
  }
  __device__ __forceinline__ void give_back(int stage) { release<C>(barriers_.v_empty[stage]); }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static_assert(kPartColumns<C> == kSharedColumns && C.output_warpgroups == 2);

  __device__ __forceinline__ void skip(int stages) {
    for (int i = 0; i < stages; ++i) {
      at_.advance();
    }
  }

  Barriers<C>& barriers_;
  Descriptor v_;  // of stage 0
  RingPosition<C.stages> at_;
};

}  // namespace strobe::sm90::forward
