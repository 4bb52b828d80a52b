// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernel that finds the blocks of a mask that is a text. Plain C++ without std headers,
// shared by host and device.
#pragma once

#include "kernels/expression/captures.h"
#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sequence/params.h"

namespace strobe::auxiliary {

/// Of the rule: where sequences lie, the mask's text, block_mask, and block_bits where those are wanted.
struct TextBlocksConfig {
  ScoreRule rule;

  bool operator==(const TextBlocksConfig&) const = default;
};

inline constexpr int kTextBlocksThreads = 256;
inline constexpr int kMostTextBlocksOfCta = kTextBlocksThreads / 32;  // a warp finds what is known of one

/// What is known of a block of queries and a block of keys.
inline constexpr unsigned char kHidden = 0;
inline constexpr unsigned char kPartlyShown = 1;
inline constexpr unsigned char kShown = kShownBlock;

struct TextBlocksParams {
  SequenceParams sequences;
  VisibilityParams visibility;
  OffsetParams offsets;
  expression::Captures captures;
  BlockMaskParams given;  // data null: every block is
  unsigned char* blocks;  // [batches, heads, q_blocks, k_blocks]
  unsigned* tiles_taken;  // null, or what becomes 0
  unsigned* bits;         // of each block block_words(); of blocks that are shown in part they are written
  int batches, heads;     // 1 where all have the same
  int q_blocks, k_blocks;
  int heads_per_kv;
  long long count;    // of blocks
  int blocks_of_cta;  // at most a warp each
};

}  // namespace strobe::auxiliary
