// SPDX-License-Identifier: Apache-2.0
// Checks of 8-bit inputs: their layouts and scales.
#pragma once

#include "api/tensor_checks.h"
#include "call/problem.h"

namespace strobe::api {

/// V as rows of keys, for the checks that all inputs share: its extents as [batch, seqlen_k, heads_kv, head_dim_v], to
/// be looked at and not to be read. `v` must be of rank 4, `k` is the keys' tensor.
ConstTensorView rows_of_values(const ConstTensorView& v, const ConstTensorView& k);

/// Scales are given, and V has the layout of 8-bit inputs: [batch, heads_kv, head_dim_v, round_up(seqlen_k, 32)].
Status check_eight_bit(const ForwardArguments& arguments);

/// Whether k and v are stored in 8 bits beside a q that is not.
bool is_stored(const ForwardArguments& arguments);

/// The scales of stored k and v are given, and nothing that belongs to an 8-bit q.
Status check_stored(const ForwardArguments& arguments);

/// Neither scales nor what belongs to them may be given: the inputs are not 8-bit.
Status check_no_scales(const ForwardArguments& arguments);

/// Checks the scales of stored k and v; fills in problem.stored.
Status read_stored(const ForwardArguments& arguments, AttentionProblem& problem);

/// Checks scales and shift, and that the call has no option that 8-bit inputs lack; fills in problem.eight_bit.
Status read_eight_bit(const ForwardArguments& arguments, AttentionProblem& problem);

}  // namespace strobe::api
