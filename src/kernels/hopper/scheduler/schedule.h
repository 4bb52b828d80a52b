// SPDX-License-Identifier: Apache-2.0
// How the tiles of a kernel are cut and handed out. Plain constexpr C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/score/params.h"
#include "kernels/score/parts.h"
#include "kernels/score/rule.h"

namespace strobe::hopper {

enum class Schedule : unsigned char {
  rounds,  // tiles of one length, one after another to each CTA
  dealt,   // the host knows the tiles' lengths and deals them out, longest first
  sorted,  // the lengths lie on the device: each CTA sorts the sequences itself
  split,   // each CTA takes as many key blocks as the others: a tile may be several CTAs', who leave parts of it
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
  int segment_blocks = 0;  // row-invariant calls: key blocks that a part has at most; 0: any number
};

struct TileParams {
  int heads;    // of q, divided by packed_heads
  int m_tiles;  // per sequence and head
  int tiles;    // in all
  Divisor by_m_tiles;
  Divisor by_inner;  // heads; with a bias, which sequences may share, sequences
};

/// Whether the flat number of a sequence's head counts sequences first, so that those that share a bias read it
/// together, while it is in L2.
constexpr bool sequences_are_inner(const ScoreRule& rule) { return rule.bias; }

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

/// Split schedules: where CTAs leave their parts of tiles, in the workspace. CTA w has slot 2 w for the tile that it
/// goes on with and slot 2 w + 1 for one that it begins and does not end. Segments have a slot each, in the order of
/// tiles and keys. kernels/steps/combine.h reads them.
struct SplitParams {
  TileParts* tiles;            // [sequences, heads, m_tiles]
  PartStatistics* statistics;  // [slots, slot_rows]
  float* sums;                 // [slots, slot_rows, head_dim_v as compiled]
  int slot_rows;
};

/// Split schedules: what each CTA makes of that in shared memory.
struct SplitWork {
  SplitParams params;
  VisibilityParams visibility;
  int blocks_of_head;                        // key blocks of all tiles of a head, where sequences are of one length
  int first_block[kMaxSortedSequences + 1];  // else: of one head, of all sequences before each; at last: of all
};
static_assert(sizeof(SplitWork) <= sizeof(SequenceOrder));  // no tile needs another size for it

}  // namespace strobe::hopper
