// SPDX-License-Identifier: Apache-2.0
// C++ arguments as calls of the C ABI, in which a max_seqlen of 0 means unknown.
#pragma once

#include "strobe/attention.h"

namespace strobe::test {

/// strobe_forward and strobe_backward; the Status has strobe_last_error()'s message.
Status call_from_c(const ForwardArguments& arguments, const AttentionOptions& options = {});
Status call_from_c(const BackwardArguments& arguments, const AttentionOptions& options = {});

/// The same by strobe_plan_forward or strobe_plan_backward, and the plan's run.
Status plan_from_c(const ForwardArguments& arguments, const AttentionOptions& options = {});
Status plan_from_c(const BackwardArguments& arguments, const AttentionOptions& options = {});

}  // namespace strobe::test
