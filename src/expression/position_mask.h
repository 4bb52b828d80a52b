// SPDX-License-Identifier: Apache-2.0
// Masks that read positions and lengths alone: what they show is known before a call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "expression/formula.h"
#include "kernels/expression/range.h"

namespace strobe::expression {

/// What the mask may be over a tile of queries and keys: [0, 0] where it hides all of it, [1, 1] where it hides
/// nothing.
using MaskRange = std::function<Range(const Range& queries, const Range& keys)>;

/// Of sequences of these lengths; none where the mask reads anything else than positions and lengths.
MaskRange position_mask(const std::shared_ptr<const Formula>& formula, std::int64_t q_len, std::int64_t k_len);

/// How many blocks of queries and keys a mask hides, shows as a whole, and shows a part of, as far as ranges tell.
struct BlockCounts {
  std::int64_t empty = 0, full = 0, partial = 0;
};

/// None where that takes more than some ten thousand looks at the mask, or positions do not fit 32 bits.
std::optional<BlockCounts> count_blocks(const MaskRange& mask, std::int64_t q_len, std::int64_t k_len,
                                        std::int64_t block);

}  // namespace strobe::expression
