// SPDX-License-Identifier: Apache-2.0
// FlashAttention-3's forward on Hopper: O = softmax(mask(softcap(scale Q K^T))) V and LSE.
//
// One CTA per multiprocessor, or two for short sequences. Warpgroup 0 produces: one warp each feeds Q, K and V to
// shared memory by TMA. The others consume: 64 rows of Q each, scores and output in registers.
//
// In the order in which to read:
//   config.h, smem.h     what a variant is, and where everything lies in shared memory
//   barriers.h           who waits for whom
//   consumer.h           the loop: Consumer::step, and what overlaps with what
//   ../../score/online_softmax.h, mask.h, transform.h    what a step does to its scores
//   ../tile/gemm.h       the two products
//   feeder.h, stored_feeder.h    the producer's side
//   epilogue.h           O and LSE to global memory
//   ../scheduler/tile_scheduler.h    which tiles a CTA computes
//   part.h               what is left of tiles that several CTAs share
//   exact_rows.h, self_feeder.h      non-finite values; the variant without producers
//
// Source: Shah et al., "FlashAttention-3" (2024), algorithms 1 and 2.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/consumer.h"
#include "kernels/sm90/forward/feeder.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/part.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/stored_feeder.h"

namespace strobe::sm90::forward {

/// Registers per thread once the roles are known: what the producers give up, the consumers get. Their sum must not
/// pass what the launch gave the CTA, 64 K registers over its threads rounded down to eights, or setmaxnreg waits
/// forever.
template <Config C>
struct RegisterBudget {
  static constexpr bool kManyNumbers = C.rule.varlen || C.rule.chunked;  // what a producer needs to find its rows
  static constexpr bool kWalks = C.rule.block_mask != 0;                 // and its blocks
  static constexpr bool kBringsScales = eight_bit(C);
  static constexpr bool kConverts = converts(C);
  static constexpr bool kCopies = C.keys == KeySource::page_rows;  // row by row
  static constexpr int kProducers = producer_warpgroups(C);
  static constexpr int kProducer = kProducers > 1                  ? 120
                                   : kConverts                     ? 88
                                   : C.consumer_warpgroups >= 3    ? 32
                                   : kCopies                       ? (C.ctas_per_sm == 2           ? 48
                                                                      : C.consumer_warpgroups == 1 ? 72
                                                                                                   : 56)
                                   : kWalks                        ? 72
                                   : kManyNumbers || kBringsScales ? 40
                                                                   : 24;
  static constexpr int kConsumer = kProducers > 1                  ? 240
                                   : kConverts                     ? 208
                                   : C.consumer_warpgroups == 4    ? 112
                                   : C.consumer_warpgroups == 3    ? 160
                                   : kWalks                        ? (C.ctas_per_sm == 2 ? 184 : 216)
                                   : kCopies                       ? (C.ctas_per_sm == 2           ? 208
                                                                      : C.consumer_warpgroups == 1 ? 240
                                                                                                   : 224)
                                   : C.ctas_per_sm == 2            ? (kManyNumbers ? 216 : 232)
                                   : kManyNumbers || kBringsScales ? 232
                                                                   : 240;
  static constexpr int kAtLaunch = 65536 / (C.ctas_per_sm * threads_per_block(C)) / 8 * 8;
  static_assert(kProducers * kProducer + C.consumer_warpgroups * kConsumer <=
                kAtLaunch * (kProducers + C.consumer_warpgroups));
};

template <Config C>
__device__ __forceinline__ void produce(const Feeders<C>& feeders) {
  const int warp = threadIdx.x / kWarpSize;
  if constexpr (converts(C)) {
    if (warp > 0) {
      StoredConverter<C>(feeders, warp - 1).run();
      return;
    }
  }
  if (!kWarpFeeds<C> && threadIdx.x % kWarpSize != 0) {
    return;
  }
  if constexpr (converts(C)) {
    StoredLoader<C>(feeders).run();
  } else if (warp == 0) {
    auto queries = feeders.queries();
    while (queries.feed()) {
    }
  } else if (warp == 1) {
    auto keys = feeders.keys();
    while (keys.feed()) {
    }
  } else if (warp == 2) {
    auto values = feeders.values();
    while (values.feed()) {
    }
  } else if constexpr (C.bias_stages > 0) {
    auto biases = feeders.biases();
    while (biases.feed()) {
    }
  }
}

template <Config C>
__device__ __forceinline__ void set_up(unsigned char* smem, Barriers<C>& barriers) {
  if (threadIdx.x == 0) {
    barriers.init();
  }
  poison<C.debug>(smem, smem_plan(C).barriers);
  __syncthreads();
}

/// Sorted and split schedules have a table of their own, in shared memory.
template <Config C>
__device__ __forceinline__ const ScheduleOf<C>& schedule_in(const typename TileListOf<C.schedule>::type& list,
                                                            const unsigned char* smem) {
  if constexpr (C.schedule == Schedule::sorted) {
    return *reinterpret_cast<const SequenceOrder*>(smem + smem_plan(C).order);
  } else if constexpr (kSplits<C>) {
    return *reinterpret_cast<const SplitWork*>(smem + smem_plan(C).order);
  } else {
    return list;
  }
}

template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), C.ctas_per_sm)
    kernel(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
           const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o,
           const __grid_constant__ Params params, const __grid_constant__ typename TileListOf<C.schedule>::type list,
           const __grid_constant__ BiasMap<C> bias) {
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& barriers = *reinterpret_cast<Barriers<C>*>(smem + smem_plan(C).barriers);
  const ScheduleOf<C>& schedule = schedule_in<C>(list, smem);
  const Feeders<C> feeders{q, k, v, o, bias, params, schedule, smem, barriers};

  // Set-up
  if (threadIdx.x == 0) {
    for (const TensorMap* map : {&q, &k, &v, &o}) {
      ptx::prefetch_tensor_map(map);
    }
    if constexpr (C.bias_stages > 0) {
      ptx::prefetch_tensor_map(&bias);
    }
  }
  if constexpr (C.schedule == Schedule::sorted) {
    make_order<tiling(C)>(params.sequences, params.visibility,
                          reinterpret_cast<SequenceOrder&>(smem[smem_plan(C).order]));
  }
  if constexpr (kSplits<C>) {
    ptx::griddepcontrol_launch_dependents();  // combine waits for this grid's end
    make_split_work<tiling(C)>(params.sequences, params.visibility, list,
                               reinterpret_cast<SplitWork&>(smem[smem_plan(C).order]));
  }
  set_up<C>(smem, barriers);

  // Roles
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
  if constexpr (!C.warp_specialized) {
    Consumer<C>(feeders, warpgroup).run();
  } else if (warpgroup < producer_warpgroups(C)) {
    ptx::setmaxnreg_dec<RegisterBudget<C>::kProducer>();
    produce<C>(feeders);
  } else {
    ptx::setmaxnreg_inc<RegisterBudget<C>::kConsumer>();
    Consumer<C>(feeders, warpgroup - producer_warpgroups(C)).run();
  }
}

}  // namespace strobe::sm90::forward
