// SPDX-License-Identifier: Apache-2.0
// A formula as device code: the header that the kernels of a call with expressions include.
#pragma once

#include <string>

#include "expression/formula.h"

namespace strobe::expression {

/// Functions in namespace strobe::expression, over kernels/expression/element.h and kernels/expression/range.h, each
/// given the formula's captures and a Position:
///   float score_of(captures, position, score)     the new score
///   float slope_of(captures, position, score)     its derivative by the score
///   bool shows(captures, position)                the mask
///   Range visibility(captures, tile)              of the mask over a tile
///   void for_each_read(captures, gradients, position, score, visit)   visit<read, capture>(place, derivative) of each
///                                                 read of a real capture: its Place by the strides of `gradients`
/// Of those of its texts that are asked for; it has them.
std::string device_code(const Formula& formula, const Parts& parts);

}  // namespace strobe::expression
