// SPDX-License-Identifier: Apache-2.0
// The processes that this one has started, as /proc shows them.
#pragma once

#include <sys/types.h>

#include <vector>

namespace strobe::test {

/// Children and theirs, parents first.
std::vector<pid_t> descendants();

/// Stops all of them by SIGSTOP, until none starts another; the last to be started come first.
std::vector<pid_t> stop_descendants();

/// Whether there is no such process any more, or nothing of it but its exit code.
bool has_ended(pid_t process);

/// Prints command line and names of threads to standard error.
void describe_process(pid_t process);

}  // namespace strobe::test
