// SPDX-License-Identifier: Apache-2.0
// Heads of more than 256 columns: O of 64 rows is more than one warpgroup's registers hold. The consumer computes
// scores and probabilities of its rows alone (wide_scores.h); other warpgroups hold O, some columns each, and multiply
// P with theirs of V (wide_output.h).
//
// For a block n:
//   1. the consumer issues S = Q K(n)^T, of which Q lies in registers, so that only K is read from shared memory
//   2. with the last of it issued, it hands on P of block n + 1: P V of that block runs under the softmax of this one
//   3. when S is there: softmax; P(n) and the factors of O's rows go to shared memory
// The tensor cores so have one product or the other to do all the time.
#pragma once

#include "kernels/sm90/forward/consume/wide_output.h"
#include "kernels/sm90/forward/consume/wide_scores.h"

namespace strobe::sm90::forward {

/// What a warpgroup of a wide loop does: the first one computes scores.
template <Config C>
class WideLoop {
 public:
  __device__ __forceinline__ WideLoop(const Context<C>& context, int warpgroup)
      : context_(context), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    if (warpgroup_ == 0) {
      ptx::setmaxnreg_inc<C.consumer_registers>();
      WideScores<C>(context_).run();
    } else {
      ptx::setmaxnreg_inc<C.output_registers>();
      WideOutput<C>(context_, warpgroup_ - 1).run();
    }
  }

 private:
  const Context<C>& context_;
  const int warpgroup_;
};

}  // namespace strobe::sm90::forward
