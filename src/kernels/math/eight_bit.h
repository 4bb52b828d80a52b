// SPDX-License-Identifier: Apache-2.0
// Numbers that results of 8-bit operands depend on. Plain constexpr C++ without std headers: every engine, the
// reference and the kernels include it.
#pragma once

namespace strobe {

// log2 of how much larger than its reference a probability in e4m3 may become: 448 / 16, less than that.
inline constexpr float kProbabilityRoomLog2 = 4.8F;

// V's scales of such keys that are no further apart than this factor have one reference, the largest: it may be two
// bits too high, and needs the scores' maximum alone.
inline constexpr float kCloseScales = 4.0F;

// Below it a scale is not worth telling from zero, and its inverse times any probability is still finite.
inline constexpr float kSmallestScale = 0x1p-80F;

}  // namespace strobe
