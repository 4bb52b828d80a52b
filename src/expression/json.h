// SPDX-License-Identifier: Apache-2.0
// Texts in recorded calls.
#pragma once

#include <cstdint>
#include <string>

#include "expression/formula.h"

namespace strobe::expression {

/// {"score": .., "mask": .., "captures": [{"name": .., "dtype": .., "rank": ..}], "gradients": bits}, on one line and
/// without what is not there. `gradients` has a bit for each capture whose gradient is wanted.
std::string json_of(const Formula& formula, std::uint32_t gradients);

}  // namespace strobe::expression
