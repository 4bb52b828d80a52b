// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

namespace strobe::program {
namespace {

volatile std::sig_atomic_t signalled = 0;

}  // namespace

Interruptible::Interruptible() {
  signalled = 0;
  struct sigaction remember{};
  remember.sa_handler = [](int) { signalled = 1; };
  remember.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigaction(SIGINT, &remember, &before_);
}

Interruptible::~Interruptible() { ::sigaction(SIGINT, &before_, nullptr); }

bool Interruptible::interrupted() { return signalled != 0; }

}  // namespace strobe::program
