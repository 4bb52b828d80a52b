// SPDX-License-Identifier: Apache-2.0
// A list of the calls that a process makes, for `strobe compile`.
#pragma once

#include "call/problem.h"

namespace strobe::api {

/// Where STROBE_RECORD names a file, appends the call's text (call/problem_text.h) as a line to it, once a process. A
/// file that cannot be written is said once, on standard error: the call itself goes on.
void record(const AttentionProblem& problem);

}  // namespace strobe::api
