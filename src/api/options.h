// SPDX-License-Identifier: Apache-2.0
// Options that are numbers or choices: their ranges, and what they cannot be combined with.
#pragma once

#include "strobe/attention.h"
#include "strobe/status.h"

namespace strobe::api {

Status check_options(const AttentionOptions& options);

/// What belongs to the sums of rows, which calls without them do not have.
Status check_normalization(const ForwardArguments& arguments, const AttentionOptions& options);
Status check_normalization(const BackwardArguments& arguments, const AttentionOptions& options);

}  // namespace strobe::api
