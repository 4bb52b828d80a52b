// SPDX-License-Identifier: Apache-2.0
// Masks that are texts as block masks, which a kernel finds on the device before each pass
// (gpu/auxiliary/text_blocks.h): which calls take them, and what shape they have.
#pragma once

#include <cstdint>

#include "call/checked.h"
#include "call/problem.h"

namespace strobe::gpu {

/// Whether a call's mask is looked at in blocks first. With few queries, and in row-invariant forwards, it is looked at
/// tile by tile and key by key.
bool takes_text_blocks(const AttentionProblem& problem);

/// The problem with the block mask that the kernel writes, where there is one: with bits for the pairs of blocks that
/// are shown in part, so that attention's kernels have nothing of the text, unless they take too much memory.
AttentionProblem with_text_blocks(AttentionProblem problem);

/// The shape of the block mask of such a problem.
struct TextBlocksShape {
  std::int64_t batches, heads, q_blocks, k_blocks;
  std::int64_t block_size;

  explicit TextBlocksShape(const AttentionProblem& problem);

  Checked count() const;
  Checked bits_bytes() const;
};

}  // namespace strobe::gpu
