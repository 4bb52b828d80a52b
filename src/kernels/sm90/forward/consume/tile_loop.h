// SPDX-License-Identifier: Apache-2.0
// The consumers' side: each warpgroup holds 64 rows of Q and walks over the key blocks of one tile after another, from
// right to left. How it does so is its loop's: pipelined.h, serial.h or eight_bit.h, all with the same interface:
//
//   begin()    a tile: what a warpgroup waits for before its blocks, or the first of them
//   blocks()   the others, from right to left
//   end()      gives Q back, and says what becomes of the tile
//   run()      every tile of the CTA, in these three steps
//
// The pipelined loop leaves the last P V of a tile to the next tile's begin_behind(), or to close(). Of 8-bit operands
// a tile is an object, whose constructor begins it and which has the blocks().
//
// run() reads alike in all of them and is written in each: where a function stands between the walk over tiles and the
// first block, ptxas makes other code of every kernel, and some spill. log: one-walk-over-tiles
#pragma once

#include "kernels/sm90/forward/consume/eight_bit.h"
#include "kernels/sm90/forward/consume/pipelined.h"
#include "kernels/sm90/forward/consume/serial.h"
#include "kernels/sm90/forward/consume/wide.h"

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

template <Config C>
struct LoopSelector<C, Loop::wide> {
  using Type = WideLoop<C>;
};

/// The parts of the interface whose names stand for one function each.
template <typename Type>
concept TileLoop = requires(Type& loop) {
  &Type::end;
  loop.run();
} && (requires { &Type::blocks; } || requires { &Type::Tile::blocks; });

/// What a consumer warpgroup does. Those of a wide loop do different things.
template <Config C>
  requires(is_wide(C) || TileLoop<typename LoopSelector<C, C.loop>::Type>)
using LoopOf = typename LoopSelector<C, C.loop>::Type;

}  // namespace strobe::sm90::forward
