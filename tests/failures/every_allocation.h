// SPDX-License-Identifier: Apache-2.0
// The attack itself: a call is repeated with its first allocation failing, then its second, and so on until it has no
// more.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "failing_allocations.h"
#include "strobe/status.h"

namespace strobe::test {

/// What one call came to. Holds no memory of its own, so that live_allocations() can be compared before and after.
struct Attempt {
  bool failed = false;  // one of its allocations
  bool threw = false;
  StatusCode code = StatusCode::ok;
  std::array<char, 256> message{};
};

template <class Call>
Attempt attempt(std::int64_t number, Failure failure, const Call& call) {
  Attempt result;
  const FailingAllocation failing(number, failure);
  try {
    const Status status = call();
    result.code = status.code();
    status.message().copy(result.message.data(), result.message.size() - 1);
  } catch (const std::bad_alloc&) {
    result.threw = true;
  }
  result.failed = failing.happened();
  return result;
}

/// `call` returns a Status; `untouched` says whether the outputs are as they were before it. Every call in which an
/// allocation failed must return out_of_memory, leak nothing and touch nothing; the first in which none did, ok.
/// Returns the messages of all that failed.
template <class Call, class Untouched>
std::vector<std::string> fail_every_allocation(Failure failure, const Call& call, const Untouched& untouched) {
  std::vector<std::string> messages;
  for (std::int64_t number = 0; !testing::Test::HasFailure(); ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    const std::int64_t live = live_allocations();
    const Attempt result = attempt(number, failure, call);
    EXPECT_EQ(live_allocations(), live) << "memory is lost";
    EXPECT_FALSE(result.threw) << "std::bad_alloc reached the caller";
    if (!result.failed) {
      EXPECT_EQ(result.code, StatusCode::ok) << result.message.data();
      EXPECT_GT(number, 0) << "the call allocates nothing: nothing was tested";
      break;
    }
    EXPECT_EQ(result.code, StatusCode::out_of_memory) << result.message.data();
    EXPECT_TRUE(untouched());
    messages.emplace_back(result.message.data());
  }
  return messages;
}

}  // namespace strobe::test
