// SPDX-License-Identifier: Apache-2.0
// Threads for calls in a process that was forked.
#pragma once

#include "strobe/attention.h"

namespace strobe::python {

/// Null, for the library's own pool, as a rule. The threads of a pool do not survive a fork: in a child process this is
/// a loop that starts threads of its own for each call.
const ParallelFor* parallel_for();

}  // namespace strobe::python
