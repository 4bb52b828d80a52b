// SPDX-License-Identifier: Apache-2.0
// The forward kernel's barriers and what they promise.
//
// clang-format off: a table
//   barrier                   arrivals per phase                  bytes   waits       means
//   q_full[w, s]              1: Q producer                       Q of w  w           stage s holds w's rows of Q
//   q_empty[w, s]             4: one lane of each warp of w               Q producer  w needs stage s no more
//   k_full[s]                 1: K producer                       K tile  consumers   stage s holds a block of keys
//   k_empty[s]                4 x consumer warpgroups     K producer  no warp reads stage s any more
//   v_full[s], v_empty[s]     as K; with 8-bit V the scales of both, too
//   bias_full[w, s]           1: bias producer                    bias    w           stage s holds the bias of a block
//   bias_empty[w, s]          4: one lane of each warp of w               producer    w has read stage s
// Where K and V are stored in 8 bits, three warps convert them, which each arrive at k_full[s] and v_full[s], and
//   raw_full[s]               1: loader                       K or V  converters  stage s holds a block as it is stored
//   raw_empty[s]              3: one lane of each converter           loader      stage s was read
// Wide loops: k_full[s] and k_empty[s] guard 64 columns of a block of keys, or of Q on its way to registers,
// v_full[s] and v_empty[s] what one warpgroup multiplies of a block of V (at k_full and
// v_full three warps that copy arrive for each panel; of a pair of CTAs the readers of both arrive at k_empty and
// v_empty of both), and
//   p_full[s]                 4: one lane of each consumer warp           O's warps   stage s holds P, and its message
//   p_empty[s]                4 x output warpgroups                       consumer    P V is done, the message was read
// In debug variants every lane of a warp that arrives does: kWarpArrivals.
// clang-format on
//
// Named barriers (0 is __syncthreads): kTurn + w, 2 x 128 threads: warpgroup w waits for its turn on the tensor cores,
// warpgroup w - 1 arrives when it has issued its GEMMs. The last warpgroup opens the first turn. kWideEnd: all of a
// wide loop's warpgroups have stored what they had. kOutputTurn + w: the warps of O's warpgroup w have read V.
// kTextOf + w, 128 threads: warpgroup w has what it keeps of a text.
//
// Producers start on the opposite parity, so that the first wait for an empty stage passes. Phases run on over tiles.
#pragma once

#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/tile/fragment.h"
#include "kernels/sm90/tile/pair.h"
#include "kernels/sm90/tile/pipeline.h"

namespace strobe::sm90::forward {

constexpr int kTurn = 1;  // first of the named barriers
constexpr int kTextOf = 8;
constexpr int kWideEnd = 1;
constexpr int kOutputTurn = 2;  // and the next: of the warpgroups that hold O

/// Lanes that arrive for a stage of boxes out of pages: each may have stored zeros.
constexpr int box_writers(const Config& c) { return c.keys == KeySource::page_boxes && c.debug ? kWarpSize : 1; }

template <Config C>
struct RawBarriers {
  __device__ void init() {}
};

template <Config C>
  requires(converts(C))
struct RawBarriers<C> {
  uint64_t raw_full[C.raw_stages], raw_empty[C.raw_stages];

  __device__ void init() {
    for (int s = 0; s < C.raw_stages; ++s) {
      cuda::ptx::mbarrier_init(&raw_full[s], box_writers(C));
      cuda::ptx::mbarrier_init(&raw_empty[s], converter_warps(C) * kWarpArrivals<C.debug>);
    }
  }
};

template <Config C>
struct BiasBarriers {
  __device__ void init() {}
};

template <Config C>
  requires(C.bias_stages > 0)
struct BiasBarriers<C> {
  uint64_t bias_full[C.consumer_warpgroups][C.bias_stages], bias_empty[C.consumer_warpgroups][C.bias_stages];

  __device__ void init() {
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      for (int s = 0; s < C.bias_stages; ++s) {
        cuda::ptx::mbarrier_init(&bias_full[w][s], 1);
        cuda::ptx::mbarrier_init(&bias_empty[w][s], kWarpsPerWarpgroup * kWarpArrivals<C.debug>);
      }
    }
  }
};

template <Config C>
struct Barriers : RawBarriers<C>, BiasBarriers<C> {
  uint64_t k_full[C.stages], k_empty[C.stages];
  uint64_t v_full[C.stages], v_empty[C.stages];
  uint64_t q_full[C.consumer_warpgroups][C.q_stages], q_empty[C.consumer_warpgroups][C.q_stages];

  /// By one thread, before anyone uses them.
  __device__ void init() {
    constexpr int kReaders = kWarpsPerWarpgroup * C.consumer_warpgroups * kWarpArrivals<C.debug>;
    constexpr int kWriters = converts(C) ? converter_warps(C) * kWarpArrivals<C.debug> : box_writers(C);
    RawBarriers<C>::init();
    BiasBarriers<C>::init();
    for (int s = 0; s < C.stages; ++s) {
      cuda::ptx::mbarrier_init(&k_full[s], kWriters);
      cuda::ptx::mbarrier_init(&v_full[s], eight_bit(C) ? kWarpArrivals<C.debug> : kWriters);
      cuda::ptx::mbarrier_init(&k_empty[s], kReaders);
      cuda::ptx::mbarrier_init(&v_empty[s], kReaders);
    }
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      for (int s = 0; s < C.q_stages; ++s) {
        cuda::ptx::mbarrier_init(&q_full[w][s], 1);
        cuda::ptx::mbarrier_init(&q_empty[w][s], kWarpsPerWarpgroup * kWarpArrivals<C.debug>);
      }
    }
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
};

/// Wide loops: warps that copy rows of their own of every panel, half of them K's and half of them V's. Each thread's
/// copies arrive by themselves.
inline constexpr int kTensorRowWarps = kWarpsPerWarpgroup / 2;
/// Where V is part of K, all of them.
inline constexpr int kSharedRowWarps = kWarpsPerWarpgroup;
/// Likewise where rows are in a format, but that each warp arrives once. Those of a pair announce what the warp of
/// their number in the other CTA stores here.
inline constexpr int kFormatRowWarps = kWarpsPerWarpgroup;

constexpr int panel_writers(const Config& c) {
  if (c.keys == KeySource::rows_in_format) {
    return kFormatRowWarps * (c.debug ? kWarpSize : 1);
  }
  if (c.keys != KeySource::page_rows) {
    return box_writers(c);
  }
  return (c.values_in_keys ? kSharedRowWarps : kTensorRowWarps) * kWarpSize;
}

template <Config C>
  requires(is_wide(C))
struct Barriers<C> {
  uint64_t k_full[C.key_panels], k_empty[C.key_panels];
  uint64_t v_full[C.stages], v_empty[C.stages];
  uint64_t p_full[kProbabilityStages], p_empty[kProbabilityStages];
  uint64_t q_full[C.consumer_warpgroups][C.q_stages], q_empty[C.consumer_warpgroups][C.q_stages];

  /// By one thread, before anyone uses them.
  __device__ void init() {
    constexpr int kWarpgroup = kWarpsPerWarpgroup * kWarpArrivals<C.debug>;
    constexpr int kReaders = kWarpgroup * cluster_ctas(C);
    const auto init_all = [](auto& full, auto& empty, int writers, int readers) {
      for (int s = 0; s < static_cast<int>(sizeof(full) / sizeof(full[0])); ++s) {
        cuda::ptx::mbarrier_init(&full[s], writers);
        cuda::ptx::mbarrier_init(&empty[s], readers);
      }
    };
    init_all(k_full, k_empty, panel_writers(C), kReaders);
    init_all(v_full, v_empty, panel_writers(C), kReaders);
    init_all(p_full, p_empty, kWarpgroup, C.output_warpgroups * kWarpgroup);
    init_all(q_full[0], q_empty[0], 1, kWarpgroup);
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
};

template <Config C>
__device__ __forceinline__ void wait(uint64_t& barrier, uint32_t parity) {
  sm90::wait<C.debug>(barrier, parity);
}

/// Whether the phase of that parity is complete, as all lanes of this warp see it.
__device__ __forceinline__ bool has_completed(uint64_t& barrier, uint32_t parity) {
  return __all_sync(kFullWarp, cuda::ptx::mbarrier_test_wait_parity(&barrier, parity));
}

template <Config C>
__device__ __forceinline__ void arrive(uint64_t& barrier) {
  sm90::arrive<C.debug>(barrier);
}

/// Wide loops: this warp needs a stage of K or V no more.
template <Config C>
__device__ __forceinline__ void release(uint64_t& empty) {
  if constexpr (C.in_pairs) {
    arrive_at_both<C.debug>(empty);
  } else {
    arrive<C>(empty);
  }
}

/// The order of ping-pong: warpgroups take turns on the tensor cores.
template <Config C>
struct WarpgroupOrder {
  static constexpr int kThreads = 2 * kWarpgroupSize;
  static constexpr bool kOn = C.ping_pong && C.consumer_warpgroups > 1;

  __device__ static void open(int warpgroup) {
    if (kOn && warpgroup == C.consumer_warpgroups - 1) {
      ptx::bar_arrive(kTurn, kThreads);
    }
  }
  __device__ static void wait(int warpgroup) {
    if constexpr (kOn) {
      ptx::bar_sync(kTurn + warpgroup, kThreads);
    }
  }
  __device__ static void pass(int warpgroup) {
    if constexpr (kOn) {
      ptx::bar_arrive(kTurn + (warpgroup + 1) % C.consumer_warpgroups, kThreads);
    }
  }
  /// For a block that this warpgroup lets pass.
  __device__ static void skip(int warpgroup) {
    wait(warpgroup);
    pass(warpgroup);
  }
};

}  // namespace strobe::sm90::forward
