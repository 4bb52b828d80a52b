// SPDX-License-Identifier: Apache-2.0
// Where the sums of dQ are added to in order: threads that store or add the staged parts in global memory, each when
// its turn has come, and let the next block of keys go on when they have arrived. The queries' warpgroup does not wait
// for that. A part takes longer to arrive than to be computed: so there are several senders, which take the parts in
// turns.
#pragma once

#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/joint/query_gradient_semaphore.h"

namespace strobe::sm90::backward {

template <Config C>
class QuerySender {
 public:
  __device__ __forceinline__ QuerySender(unsigned char* smem, Barriers<C>& barriers, int number)
      : smem_(smem), barriers_(barriers), number_(number) {}

  /// Sends parts until one comes that goes nowhere. By one thread.
  __device__ __forceinline__ void run() {
    const auto* stage = reinterpret_cast<const float*>(smem_ + smem_plan(C).dq);
    const StagedPart& part = reinterpret_cast<const QueryState*>(smem_ + smem_plan(C).query_state)->staged[number_];
    uint32_t parity = 0;
    while (true) {
      wait<C>(barriers_.announced[number_], parity);
      float* const sums = part.sums;
      if (sums == nullptr) {
        return;
      }
      const QueryGradientSemaphore semaphore = part.semaphore;
      if (!semaphore.first()) {
        semaphore.wait<C.debug>();
      }
      wait<C>(barriers_.staged_full[number_], parity);
      if (semaphore.first()) {
        cptx::cp_async_bulk(cptx::space_global, cptx::space_shared, sums, stage, kQueryGradientPieceBytes);
      } else {
        cptx::cp_reduce_async_bulk(cptx::space_global, cptx::space_shared, cptx::op_add, sums, stage,
                                   kQueryGradientPieceBytes);
      }
      cptx::cp_async_bulk_commit_group();
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
      cptx::mbarrier_arrive(&barriers_.staged_empty);
      cptx::cp_async_bulk_wait_group(cptx::n32_t<0>{});
      semaphore.pass_on();
      parity ^= 1;
    }
  }

 private:
  unsigned char* smem_;
  Barriers<C>& barriers_;
  int number_;
};

}  // namespace strobe::sm90::backward
