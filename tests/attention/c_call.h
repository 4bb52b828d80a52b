// SPDX-License-Identifier: Apache-2.0
// C++ arguments as calls of the C ABI, in which a max_seqlen of 0 means unknown.
#pragma once

#include "strobe/attention.h"
#include "strobe/cache.h"
#include "strobe/jvp.h"
#include "strobe/merge.h"
#include "strobe/quantize.h"

namespace strobe::test {

/// strobe_forward and strobe_backward; the Status has strobe_last_error()'s message.
Status call_from_c(const ForwardArguments& arguments, const AttentionOptions& options = {});
Status call_from_c(const BackwardArguments& arguments, const AttentionOptions& options = {});

/// The same by strobe_plan_forward or strobe_plan_backward, and the plan's run.
Status plan_from_c(const ForwardArguments& arguments, const AttentionOptions& options = {});
Status plan_from_c(const BackwardArguments& arguments, const AttentionOptions& options = {});

/// strobe_jvp.
Status call_from_c(const JvpArguments& arguments, const AttentionOptions& options = {});

/// strobe_quantize, strobe_append and strobe_merge.
Status call_from_c(const QuantizeArguments& arguments, const QuantizeOptions& options);
Status call_from_c(const AppendArguments& arguments);
Status call_from_c(const MergeArguments& arguments);

}  // namespace strobe::test
