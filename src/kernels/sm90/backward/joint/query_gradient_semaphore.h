// SPDX-License-Identifier: Apache-2.0
// Semaphores that keep the order of dQ's sums (query_gradient_order.h): one for each part of a block of queries. The
// first item to come stores instead of adding, so that nobody has to clear the sums; the last takes them, adds its own
// in registers and stores dQ.
//
// In params.dq_semaphores each part of a block has the number of the key block that was there last, plus 1, and 0 at
// the start.
#pragma once

#include "kernels/sm90/backward/joint/query_gradient_order.h"
#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/tile/pipeline.h"

namespace strobe::sm90::backward {

inline constexpr unsigned kNotFinite = 0xffffffffU;  // instead of a number: dQ is not finite

/// Traps in debug variants where a wait takes longer than any that ends.
template <bool debug>
class Deadline {
 public:
  __device__ __forceinline__ void check() const {
    if constexpr (debug) {
      if (global_nanoseconds() - start_ > kHopelessNanoseconds) {
        __trap();
      }
    }
  }

 private:
  __device__ __forceinline__ static unsigned long long global_nanoseconds() {
    unsigned long long now = 0;
    if constexpr (debug) {
      asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(now));
    }
    return now;
  }

  unsigned long long start_ = global_nanoseconds();
};

/// What one item waits for and leaves at a part of a block.
struct QueryGradientSemaphore {
  unsigned* state;
  unsigned before, own;  // what the item before leaves in the state, 0 if there is none, and what this one does

  __device__ __forceinline__ bool first() const { return before == 0; }

  /// Waits for the item before. By one thread. Traps in debug variants where that never comes.
  template <bool debug>
  __device__ __forceinline__ void wait() const {
    [[maybe_unused]] Deadline<debug> deadline;
    unsigned now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(now) : "l"(state) : "memory");
      deadline.check();
    } while (now != before);
  }

  /// Lets the item after this one go on: what this thread wrote, or knows to be written, is seen by it.
  __device__ __forceinline__ void pass_on() const {
    asm volatile("st.release.gpu.global.u32 [%0], %1;\n" ::"l"(state), "r"(own) : "memory");
  }

  /// After dQ has been stored: that it was, and whether it is finite. By any number of threads.
  __device__ __forceinline__ void end(bool finite) const {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;\n" ::"l"(state), "r"(finite ? own : kNotFinite) : "memory");
  }
};

/// An item's semaphore at a part of block m of a head, which is `block` in the workspaces.
__device__ __forceinline__ QueryGradientSemaphore semaphore_at(const Params& params, const QueryGradientOrder& order,
                                                               int block, int m, int part) {
  return {params.dq_semaphores + static_cast<long long>(block) * kOrderedParts + part,
          order.first(m) ? 0U : static_cast<unsigned>(order.n + order.direction + 1),
          static_cast<unsigned>(order.n + 1)};
}

/// A part of dQ on its way through shared memory, and where it goes.
struct StagedPart {
  float* sums;  // null: no more come
  QueryGradientSemaphore semaphore;
};

/// What the queries' warpgroup keeps in shared memory: for its senders, and what its registers have no room for.
struct QueryState {
  StagedPart staged[kSenders];
  QueryGradientOrder order;
};
static_assert(sizeof(QueryState) <= kQueryStateBytes);

}  // namespace strobe::sm90::backward
