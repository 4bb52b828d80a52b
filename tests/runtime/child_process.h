// SPDX-License-Identifier: Apache-2.0
// Runs a piece of a test in a process of its own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace strobe::test {

/// Starts `body` in a child; its result is the exit code. Checks inside the child must come back through that code.
template <class Body>
pid_t start_child(const Body& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int code = body();
    std::fflush(nullptr);
    ::_exit(code);
  }
  return child;
}

/// The child's exit code, or -1 when it crashed.
inline int wait_for(pid_t child) {
  int state = 0;
  if (child <= 0 || ::waitpid(child, &state, 0) != child) return -1;
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

}  // namespace strobe::test
