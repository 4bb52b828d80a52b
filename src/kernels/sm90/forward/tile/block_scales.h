// SPDX-License-Identifier: Apache-2.0
// 8-bit operands: the scales of a block of keys in shared memory, as a producer leaves them and consumers read them.
#pragma once

#include "kernels/math/eight_bit.h"
#include "kernels/sm90/forward/smem.h"

namespace strobe::sm90::forward {

/// What a block of keys brings beside its elements, in shared memory.
template <Config C>
struct BlockScales {
  float values[value_scales(C)];  // kFoldsValueScales: their log2
  float keys[key_scales(C)];
  float inverses[key_scales(C)];  // kFoldsValueScales: of the values, 1 where they are not numbers
  // Of V's scales; NaN where they are further apart than kCloseScales, one is not a number, or one of K's is unusual.
  float largest_log2;
};

/// Whether a group of keys shares a V scale that is part of its exponents; a block of integers' joins P V's sums
/// instead.
template <Config C>
constexpr bool kFoldsValueScales = !sums_by_block(C) && C.keys_per_value_scale > 1;

/// Whether scores are changed before they are scaled.
template <Config C>
constexpr bool kTransforms = C.rule.softcap || C.rule.alibi;

/// Whether the sums of hidden keys become -inf, which they must still be after scaling. So the scales are positive, and
/// at least kLeastUsualScale, lest the product of two be zero; blocks with smaller scales of K take the special path.
template <Config C>
constexpr bool kMasksSums = !sums_by_block(C) && !kTransforms<C> && !C.rule.scale_first;
constexpr float kLeastUsualScale = 0x1p-60F;

}  // namespace strobe::sm90::forward
