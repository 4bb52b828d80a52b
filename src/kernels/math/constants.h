// SPDX-License-Identifier: Apache-2.0
// Numbers that scores and logarithms need. Plain C++ without std headers, shared by host and device.
#pragma once

namespace strobe {

/// exp(x) = 2^(kLog2E x).
inline constexpr float kLog2E = 1.442695040888963407F;
inline constexpr float kLn2 = 0.693147180559945309F;
inline constexpr float kMinusInfinity = __builtin_bit_cast(float, 0xff800000U);

}  // namespace strobe
