// SPDX-License-Identifier: Apache-2.0
// FlashAttention-3's forward on Hopper: O = softmax(mask(softcap(scale Q K^T))) V and LSE.
//
// One CTA per multiprocessor, or two for short sequences. Warpgroup 0 produces: one warp each feeds Q, K and V to
// shared memory by TMA. The others consume: 64 rows of Q each, scores and output in registers.
//
// In the order in which to read:
//   config.h, smem.h, params.h      what a variant is, where everything lies in shared memory, what the host hands over
//   barriers.h                      who waits for whom
//   tile/work.h, rules.h            which rows and keys a tile has, and what happens to its scores
//   consume/pipelined.h             the loop: PipelinedLoop::step, and what overlaps with what
//   consume/steps.h                 its parts: the two products, and from scores to probabilities
//   ../../score/apply.h, mask.h, softmax.h    what a step does to its scores
//   ../tile/gemm.h                  the two products
//   consume/tile_loop.h             the other loops
//   produce/producer.h              which warp brings Q, K, V, their scales and the bias
//   store/tiles.h, output.h         O and LSE to global memory
//   store/repair.h                  rows whose output is not finite
//   ../scheduler/tile_scheduler.h   which tiles a CTA computes
//   tile/segments.h, split.h        tiles whose keys come in segments, or that several CTAs share
//
// Source: Shah et al., "FlashAttention-3" (2024), algorithms 1 and 2.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/consume/tile_loop.h"
#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/produce/producer.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/tile/split.h"

namespace strobe::sm90::forward {

constexpr bool registers_fit(const Config& c) {
  return c.producer_warpgroups * c.producer_registers + c.consumer_warpgroups * c.consumer_registers +
             c.output_warpgroups * c.output_registers <=
         registers_at_launch(c) * threads_per_block(c) / kWarpgroupSize;
}

/// Pairs: tiles without masks, of which two CTAs walk over the same blocks.
constexpr bool pairs_fit(const Config& c) {
  return c.keys == KeySource::rows_in_format && !has_diagonal(c.rule) && c.schedule != Schedule::dealt;
}

/// Whether the loop is one for the operands, and what it does is asked for and possible.
constexpr bool fields_agree(const Config& c) {
  const bool loop = eight_bit(c) == (c.loop == Loop::eight_bit || c.loop == Loop::eight_bit_serial);
  const bool own_begins = !c.own_begins || (c.rule.mask_left && !has_key_tags(c) && own_begins_fit(c));
  const bool producers = c.producer_warpgroups == 1 || (c.producer_warpgroups == 2 && converts(c));
  const bool ahead = c.exponentials_ahead == 0 || (sums_by_block(c) && c.loop == Loop::eight_bit);
  const bool joined = !c.rule.query_values || (is_wide(c) && c.keys != KeySource::rows_in_format && c.bias_stages == 0);
  const bool softcap = !c.caps_in_softmax || (score::may_cap_in_softmax(c.rule) && !eight_bit(c));
  return loop && own_begins && producers && (!c.in_pairs || pairs_fit(c)) && ahead && joined && softcap &&
         (!c.relative_alibi || c.rule.alibi);
}

template <Config C>
__device__ __forceinline__ void set_up(unsigned char* smem, Barriers<C>& barriers) {
  if (threadIdx.x == 0) {
    barriers.init();
  }
  poison<C.debug>(smem, smem_plan(C).barriers);
  if constexpr (C.in_pairs) {
    sync_pair();
  } else {
    __syncthreads();
  }
}

/// Sorted and split schedules have a table of their own in shared memory, and those of tiles that are taken a ring.
template <Config C>
__device__ __forceinline__ const ScheduleOf<C>& schedule_in(const typename TileListOf<C.schedule>::type& list,
                                                            const unsigned char* smem) {
  if constexpr (C.schedule == Schedule::sorted || C.schedule == Schedule::taken) {
    return *reinterpret_cast<const ScheduleOf<C>*>(smem + smem_plan(C).order);
  } else if constexpr (kSplits<C>) {
    return *reinterpret_cast<const SplitWork*>(smem + smem_plan(C).order);
  } else {
    return list;
  }
}

/// Schedules of tiles that are taken: the fourth warp of the producers has nothing to bring.
inline constexpr int kIdleWarps = 1;

template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), C.ctas_per_sm)
    kernel(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
           const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o,
           const __grid_constant__ sequence::KernelParams<C.rule, Params> params,
           const __grid_constant__ typename TileListOf<C.schedule>::type list,
           const __grid_constant__ OtherMap<C> other) {
  static_assert(registers_fit(C) && fields_agree(C));
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& barriers = *reinterpret_cast<Barriers<C>*>(smem + smem_plan(C).barriers);
  const ScheduleOf<C>& schedule = schedule_in<C>(list, smem);
  const Context<C> context{q, k, v, o, other, params, schedule, smem, barriers};

  // Set-up
  if (threadIdx.x == 0) {
    for (const TensorMap* map : {&q, &k, &v, &o}) {
      ptx::prefetch_tensor_map(map);
    }
    if constexpr (has_other_map(C)) {
      ptx::prefetch_tensor_map(&other);
    }
  }
  if constexpr (C.schedule == Schedule::sorted) {
    make_order<tiling(C)>(params, reinterpret_cast<SequenceOrder<C.table_sequences>&>(smem[smem_plan(C).order]));
  }
  if constexpr (C.schedule == Schedule::taken) {
    if (threadIdx.x == 0) {
      init(reinterpret_cast<TileRing&>(smem[smem_plan(C).order]), list,
           threads_per_block(C) / kWarpSize - kIdleWarps - 1);
    }
  }
  if constexpr (kSplits<C>) {
    ptx::griddepcontrol_launch_dependents();  // combine waits for this grid's end
    make_split_work<tiling(C)>(params, list, reinterpret_cast<SplitWork&>(smem[smem_plan(C).order]));
  }
  set_up<C>(smem, barriers);

  // Roles
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup < C.producer_warpgroups) {
    ptx::setmaxnreg_dec<C.producer_registers>();
    produce<C>(context);
  } else {
    if constexpr (!is_wide(C)) {  // whose warpgroups differ
      ptx::setmaxnreg_inc<C.consumer_registers>();
    }
    LoopOf<C>(context, warpgroup - C.producer_warpgroups).run();
  }
  if constexpr (C.in_pairs) {
    sync_pair();
  }
}

}  // namespace strobe::sm90::forward
