// SPDX-License-Identifier: Apache-2.0
// What a fuzz target demands of its subject. A demand that is not met ends the process, which is how libFuzzer learns
// of it.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace strobe::fuzz {

inline void expect(bool condition, const char* demand) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", demand);
  std::abort();
}

}  // namespace strobe::fuzz
