// SPDX-License-Identifier: Apache-2.0
// Tiles of a forward as rows of a table, of which a call takes the first that fits.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// How a CTA's work is cut.
struct Tiles {
  int warpgroups = 0;  // of consumers, 64 rows each
  int block_n = 0;     // keys per step
  int stages = 0;      // of K and V
  int q_stages = 0;
  int ctas_per_sm = 1;
  bool ping_pong = true;
  int raw_stages = 0;
  int producer_warpgroups = 1;
};

inline forward::Config with(const forward::Config& call, const Tiles& tiles) {
  forward::Config config = call;
  config.consumer_warpgroups = tiles.warpgroups;
  config.block_n = tiles.block_n;
  config.stages = tiles.stages;
  config.q_stages = tiles.q_stages;
  config.ctas_per_sm = tiles.ctas_per_sm;
  config.ping_pong = tiles.ping_pong;
  config.raw_stages = tiles.raw_stages;
  config.producer_warpgroups = tiles.producer_warpgroups;
  return config;
}

inline constexpr int kBlockN[] = {128, 112, 96, 80, 64};

/// Each of `shapes` with each number of keys per step, the largest first.
template <std::size_t count>
constexpr std::array<Tiles, count * std::size(kBlockN)> by_block_n(const Tiles (&shapes)[count]) {
  std::array<Tiles, count * std::size(kBlockN)> tiles{};
  std::size_t at = 0;
  for (const int block_n : kBlockN) {
    for (const Tiles& shape : shapes) {
      tiles[at] = shape;
      tiles[at++].block_n = block_n;
    }
  }
  return tiles;
}

/// `call` with the first of the candidates with which it `fits`, or with the last.
template <class Fits>
forward::Config first_that_fits(const forward::Config& call, std::span<const Tiles> candidates, const Fits& fits) {
  for (const Tiles& tiles : candidates) {
    if (const forward::Config config = with(call, tiles); fits(config)) return config;
  }
  return with(call, candidates.back());
}

}  // namespace strobe::sm90
