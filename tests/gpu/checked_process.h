// SPDX-License-Identifier: Apache-2.0
// A process of its own for calls that read numbers back from the GPU and check them (STROBE_CHECK_VALUES=1), which a
// process decides once.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

namespace strobe::test {

/// Of a death test: runs `test` in checking mode and ends the process, with 0 where nothing has failed.
[[noreturn]] inline void run_checked(const std::function<void()>& test) {
  ::setenv("STROBE_CHECK_VALUES", "1", 1);
  test();
  std::exit(testing::Test::HasFailure() ? EXIT_FAILURE : EXIT_SUCCESS);
}

/// Runs `test` in such a process, which starts from the beginning of the program as a GPU needs it.
inline void expect_passes_checked(const std::function<void()>& test) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_checked(test), testing::ExitedWithCode(EXIT_SUCCESS), "");
}

}  // namespace strobe::test
