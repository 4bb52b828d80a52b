// SPDX-License-Identifier: Apache-2.0
// Ctrl-C in long work: what was finished by then is still reported.
#pragma once

#include <csignal>

namespace strobe::program {

/// While it lives, the first SIGINT is only remembered; a second one ends the process as ever.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  /// Whether SIGINT has come since the last one was made.
  static bool interrupted();

 private:
  struct sigaction before_{};
};

}  // namespace strobe::program
