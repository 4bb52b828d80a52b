// SPDX-License-Identifier: Apache-2.0
// Random expressions, and points to evaluate them at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expression/evaluate.h"
#include "expression/formula.h"
#include "random.h"

namespace strobe::test {

/// The captures that random texts read: a real vector, a real matrix, an integer vector and a boolean vector.
const std::vector<CaptureType>& captures();

/// `depth` operations within one another at most. Texts of reals have corners, of booleans comparisons.
std::string random_real(Random& random, int depth);
std::string random_integer(Random& random, int depth);
std::string random_boolean(Random& random, int depth);

/// Positions below 32, captures of kExtent elements a dimension whose values follow from `seed`.
inline constexpr std::int64_t kExtent = 12;
expression::Point random_point(Random& random);

/// The value of a text's score, or of its mask.
double score_at(const expression::Formula& formula, const expression::Point& point);
bool mask_at(const expression::Formula& formula, const expression::Point& point);

}  // namespace strobe::test
