// SPDX-License-Identifier: Apache-2.0
// The time of one call on the host.
#pragma once

#include <chrono>

#include "strobe/status.h"

namespace strobe::program {

/// Milliseconds that `call` takes, or the Status that it returns when that is an error.
template <class Call>
Result<double> timed(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  Status status = call();
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  if (!status.ok()) return status;
  return elapsed.count();
}

}  // namespace strobe::program
