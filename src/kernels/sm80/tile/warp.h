// SPDX-License-Identifier: Apache-2.0
// Sizes that host and device share. Plain constexpr C++ without std headers.
#pragma once

namespace strobe::sm80 {

constexpr int kWarpSize = 32;
constexpr int kFragmentRows = 16;  // of an accumulator
constexpr int kStep = 16;          // what the tensor cores sum over at a time

}  // namespace strobe::sm80
