// SPDX-License-Identifier: Apache-2.0
// Checks of the tensors that join the scores, and of their gradients.
#pragma once

#include "api/tensor_checks.h"
#include "call/problem.h"
#include "strobe/attention.h"

namespace strobe::api {

/// Shapes, dtypes, strides and devices of what is given; fills problem.modifiers and problem.expression. The problem's
/// extents must be there.
Status read_modifiers(const ScoreModifiers& given, AttentionProblem& problem);

/// What of the options does not go with offsets, where those are given.
Status check_offsets(const Sequences& sequences, const AttentionOptions& options);

/// Of a forward: shape, dtype, stride and device of what is given, and that its sequences are short enough; fills
/// problem.has_tree_mask. The modifiers must have been read.
Status read_tree_mask(const NamedTensor& mask, AttentionProblem& problem);

/// d_bias, d_sink and d_captures, where given, belong to a bias, a sink and captures and have their shapes; fills
/// problem.expression.gradients.
Status check_modifier_gradients(const BackwardArguments& arguments, AttentionProblem& problem);

/// [batch, heads_q] float32, where given.
Status check_max_logits(const NamedTensor& max_logits, const AttentionProblem& problem);

}  // namespace strobe::api
