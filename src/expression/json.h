// SPDX-License-Identifier: Apache-2.0
// Texts in recorded calls.
#pragma once

#include <cstdint>
#include <string>

#include "expression/formula.h"

namespace strobe::expression {

/// {"score": .., "mask": .., "captures": [{"name": .., "dtype": .., "rank": ..}], "gradients": bits, "bias_fits": true,
/// "slopes_fit": true}, on one line. A field that is empty, zero or false is left out. `gradients` has a bit for each
/// capture whose gradient is wanted; the last two say whether captures could be a call's bias and slopes.
std::string json_of(const Formula& formula, std::uint32_t gradients, bool bias_fits, bool slopes_fit);

}  // namespace strobe::expression
