// SPDX-License-Identifier: Apache-2.0
// How the tiles of a kernel are cut and handed out. Plain constexpr C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/score/rule.h"

namespace strobe::hopper {

enum class Schedule : unsigned char {
  rounds,  // tiles of one length, one after another to each CTA
  dealt,   // the host knows the tiles' lengths and deals them out, longest first
  sorted,  // the lengths lie on the device: each CTA sorts the sequences itself
};

/// What a scheduler must know of a kernel.
struct Tiling {
  ScoreRule rule;
  Schedule schedule = Schedule::rounds;
  int block_m = 0;
  int block_n = 0;
  int packed_heads = 1;    // query heads whose rows are interleaved in a tile
  int threads = 0;         // of a CTA
  bool persistent = true;  // each CTA computes many tiles
};

struct TileParams {
  int heads;    // of q, divided by packed_heads
  int m_tiles;  // per sequence and head
  int tiles;    // in all
  Divisor by_m_tiles, by_heads;
};

/// Dealt schedules: which tiles each CTA computes, in order. The list repeats every `period_heads` heads.
struct TileList {
  static constexpr int kMaxWorkers = 320;
  static constexpr int kMaxTiles = 4096;
  int period_heads;
  int periods;
  unsigned short first[kMaxWorkers + 1];  // CTA i computes tiles[first[i]] ... tiles[first[i + 1] - 1]
  unsigned short tiles[kMaxTiles];        // head within the period * m_tiles + m
};

/// What the other schedules take in its place.
struct NoTileList {};

/// Sorted schedules: a table that each CTA makes in shared memory. Sequences by falling length of their tiles; a unit
/// is a tile or a pair of them.
inline constexpr int kMaxSortedSequences = 480;
struct SequenceOrder {
  int first_unit[kMaxSortedSequences + 1];  // of one head, at each place; at last: units in all
  unsigned short sequence[kMaxSortedSequences];
};

}  // namespace strobe::hopper
