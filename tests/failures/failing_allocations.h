// SPDX-License-Identifier: Apache-2.0
// Memory that runs out when a test wants it to: this program's operator new, in every form, counts and can fail.
#pragma once

#include <cstdint>

namespace strobe::test {

enum class Failure : std::uint8_t {
  once,       // that allocation alone: the call has memory again to say so
  from_then,  // that one and all after it: the call must say so without any
};

/// While it lives, the process's allocation number `number` from now (from 0) fails, on whichever thread.
class FailingAllocation {
 public:
  FailingAllocation(std::int64_t number, Failure failure);
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
  ~FailingAllocation();

  /// Whether an allocation has failed yet.
  bool happened() const;
};

/// Allocations of the process that have not been freed.
std::int64_t live_allocations();

}  // namespace strobe::test
