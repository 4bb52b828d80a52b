// SPDX-License-Identifier: Apache-2.0
// The consumers' side: each warpgroup holds 64 rows of Q and walks over the key blocks of one tile after another, from
// right to left. How it does so is its loop's: pipelined.h, serial.h or eight_bit.h, each of which has a run(), so that
// what overlaps with what, from block to block and from tile to tile, can be read in one place.
//
// They do not share the walk over tiles: ptxas gives the pipelined kernels other registers, and some of them other
// code, when a function stands between that walk and the first step of a tile.
#pragma once

#include "kernels/sm90/forward/consume/eight_bit.h"
#include "kernels/sm90/forward/consume/pipelined.h"
#include "kernels/sm90/forward/consume/serial.h"

namespace strobe::sm90::forward {

template <Config C, Loop loop>
struct LoopSelector {
  using Type = EightBitLoop<C>;
};
template <Config C>
struct LoopSelector<C, Loop::pipelined> {
  using Type = PipelinedLoop<C>;
};
template <Config C>
struct LoopSelector<C, Loop::serial> {
  using Type = SerialLoop<C>;
};
/// What a consumer warpgroup does: run() computes its rows of every tile of the CTA.
template <Config C>
using LoopOf = typename LoopSelector<C, C.loop>::Type;

}  // namespace strobe::sm90::forward
