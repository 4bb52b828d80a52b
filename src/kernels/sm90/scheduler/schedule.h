// SPDX-License-Identifier: Apache-2.0
// How the tiles of a kernel are cut and handed out. Plain constexpr C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/scheduler/split.h"
#include "kernels/scheduler/tiling.h"

namespace strobe::sm90 {

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
template <int most_sequences>
struct SequenceOrder {
  int first_unit[most_sequences + 1];  // of one head, at each place; at last: units in all
  unsigned short sequence[most_sequences];
};

constexpr int sequence_order_bytes(int most_sequences) {
  constexpr int kWord = static_cast<int>(sizeof(int));
  const int halves = most_sequences * static_cast<int>(sizeof(unsigned short));
  return (most_sequences + 1) * kWord + (halves + kWord - 1) / kWord * kWord;
}
static_assert(sequence_order_bytes(kMaxTableSequences) == sizeof(SequenceOrder<kMaxTableSequences>));
static_assert(sizeof(SplitWork) <= sizeof(SequenceOrder<kMaxTableSequences>));  // no tile needs another size for it

/// Schedules of tiles that are taken: in the workspace.
struct TakenTiles {
  unsigned* count;         // taken beside the first of each CTA; 0 when the kernel starts
  unsigned short* owners;  // of each tile, which CTA took it
};

/// And in a CTA's shared memory: tiles on their way from the warp that takes them to the others.
struct TileRing {
  static constexpr int kSlots = 4;
  unsigned long long full[kSlots], empty[kSlots];  // mbarriers
  int tile[kSlots];
  TakenTiles taken;
};

}  // namespace strobe::sm90
