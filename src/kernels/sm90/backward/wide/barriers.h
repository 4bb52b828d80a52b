// SPDX-License-Identifier: Apache-2.0
// The barriers of a CTA of a pair and what they promise.
//
// clang-format off: a table
//   barrier              arrivals per phase                bytes              waits      means
//   resident_full        1: producer                       K or V             scores     the keys are there
//   panel_full[s]        1: producer                       64 columns         scores     stage s holds some of Q or dO
//   panel_empty[s]       1 per warp of scores                                 producer   no warp reads it any more
//   piece_full[s]        1: producer                       half the columns   sums       stage s holds some of dO or Q
//   piece_empty[s]       1 per warp of its sums                               producer   no warp reads it any more
//   rows_full[s], rows_empty[s]   as panels, with LSE or D of a step
//   scores_full[s]       1 per warp of scores                                 sums       P or dS of a step is written
//   scores_empty[s]      1 per warp of sums                                   scores     no warp reads it any more
//   handed_full[s]       1: scores of the second CTA    P                      scores of the second CTA   P was handed over
//   handed_empty[s]      1 per warp of the second CTA's scores                scores of the first CTA    it was read
// clang-format on
//
// handed_full is used in the second CTA, whose first thread announces what the first CTA stores there, and handed_empty
// in the first, by arrivals of the other CTA.
//
// Named barriers (0 is __syncthreads): kLastRead: of both warpgroups of sums. kWarpgroup + w: of the sums' warpgroup w.
// kQueries: of the scores' warpgroup.
#pragma once

#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/wide/smem.h"
#include "kernels/sm90/tile/pair.h"

namespace strobe::sm90::backward {

template <Config C>
struct WideBarriers {
  uint64_t panel_full[C.q_stages], panel_empty[C.q_stages];
  uint64_t piece_full[C.do_stages], piece_empty[C.do_stages];
  uint64_t rows_full[kRowStages], rows_empty[kRowStages];
  uint64_t scores_full[C.ds_stages], scores_empty[C.ds_stages];
  uint64_t handed_full[C.p_stages], handed_empty[C.p_stages];
  uint64_t resident_full;

  /// Initialises the barriers. By one thread, before anyone of the cluster uses them.
  __device__ void init() {
    constexpr uint32_t kWarpgroupArrivals = kWarpsPerWarpgroup * kWarpArrivals<C.debug>;
    init_ring(panel_full, 1, panel_empty, kWarpgroupArrivals);
    init_ring(piece_full, 1, piece_empty, kWarpgroupArrivals);
    init_ring(rows_full, 1, rows_empty, kWarpgroupArrivals);
    init_ring(scores_full, kWarpgroupArrivals, scores_empty, kSumWarpgroups * kWarpgroupArrivals);
    init_ring(handed_full, 1, handed_empty, kWarpgroupArrivals);
    cuda::ptx::mbarrier_init(&resident_full, 1);
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }

 private:
  template <int stages>
  __device__ static void init_ring(uint64_t (&full)[stages], uint32_t full_arrivals, uint64_t (&empty)[stages],
                                   uint32_t empty_arrivals) {
    for (int s = 0; s < stages; ++s) {
      cuda::ptx::mbarrier_init(&full[s], full_arrivals);
      cuda::ptx::mbarrier_init(&empty[s], empty_arrivals);
    }
  }
};

}  // namespace strobe::sm90::backward
