// SPDX-License-Identifier: Apache-2.0
// Included before every file of the broken tree: which of the mutations is on.
#pragma once

#include <cstdlib>

namespace strobe_mutation {

/// The number in STROBE_MUTANT; 0, and all code as it was written, where there is none.
inline const int kMutant = [] {
  const char* text = std::getenv("STROBE_MUTANT");
  return text == nullptr ? 0 : std::atoi(text);
}();

}  // namespace strobe_mutation
