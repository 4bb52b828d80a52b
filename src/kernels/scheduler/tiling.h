// SPDX-License-Identifier: Apache-2.0
// What a scheduler must know of a kernel's tiles. Plain constexpr C++ without std headers, shared by host and device.
#pragma once

#include "kernels/score/rule.h"

namespace strobe {

enum class Schedule : unsigned char {
  rounds,  // tiles of one length, one after another to each CTA
  dealt,   // the host knows the tiles' lengths and deals them out, longest first
  sorted,  // the lengths lie on the device: each CTA sorts the sequences itself
  taken,   // no one knows how long tiles are: a CTA that is done takes the next
  split,   // each CTA takes as many key blocks as the others: a tile may be several CTAs', who leave parts of it
};

inline constexpr int kMaxTableSequences = 480;  // whose lengths the device finds
inline constexpr int kPairCtas = 2;

struct Tiling {
  ScoreRule rule;
  Schedule schedule = Schedule::rounds;
  int block_m = 0;
  int block_n = 0;
  int packed_heads = 1;          // query heads whose rows are interleaved in a tile
  int threads = 0;               // of a CTA
  bool heads_outermost = false;  // split schedules: all sequences of a head, then those of the next; else inside out
  bool bisects = false;          // sorted schedules: a tile's place is found by bisection, not by walking on
  bool in_pairs = false;         // split schedules: neighbouring CTAs have the same keys of neighbouring heads
  int table_sequences = kMaxTableSequences;  // sorted and split schedules: of their table, at most
  bool debug = false;                        // waits trap instead of hanging
  int segment_blocks = 0;                    // row-invariant calls: key blocks that a part has at most; 0: any number
};

}  // namespace strobe
