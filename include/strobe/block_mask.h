// SPDX-License-Identifier: Apache-2.0
// Common patterns for ScoreModifiers::block_mask. Each writes a mask [.., query blocks, key blocks] uint8 of rank 2 to
// 4 in host memory, 1 where the block is visible, the same pattern for every leading index.
#pragma once

#include <cstdint>

#include "strobe/export.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// Key blocks from `left` before to `right` after the query block's own; -1 leaves that side unbounded. Query block i's
/// own block is key block i + key blocks - query blocks: the last queries align with the last keys. @stable
STROBE_API Status local_block_mask(const TensorView& mask, std::int64_t left, std::int64_t right);

/// The own block and every key block whose distance from it is a multiple of `stride` >= 1.
/// Source: Child et al., "Generating long sequences with sparse transformers" (2019), section 4.3. @stable
STROBE_API Status strided_block_mask(const TensorView& mask, std::int64_t stride);

/// The own block and those whose index differs from the own in one bit: the flat butterfly, log2(blocks) + 1 blocks a
/// row. Source: Dao et al., "FlashAttention" (2022), section 3.3 and Chen et al., "Pixelated butterfly" (2022). @stable
STROBE_API Status butterfly_block_mask(const TensorView& mask);

}  // namespace strobe
