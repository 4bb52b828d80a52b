// SPDX-License-Identifier: Apache-2.0
// Checks of the function of a call and of the tensors that its texts read.
#pragma once

#include "api/tensor_checks.h"
#include "call/problem.h"
#include "strobe/attention.h"

namespace strobe::api {

/// Each capture is given, with the dtype and rank that the function has, on q's device; fills problem.expression.
Status read_expression(const ScoreModifiers& given, AttentionProblem& problem);

/// Those that are given have their captures' shapes, and the function's score reads these; fills
/// problem.expression.gradients. The expression must have been read.
Status read_capture_gradients(const BackwardArguments& arguments, AttentionProblem& problem);

/// Every element of captures of int64, which are in host memory, fits the 32 bits that integers of texts have. Captures
/// of other types are not read, and may be anywhere.
Status check_capture_values(const ScoreModifiers& given);

}  // namespace strobe::api
