// SPDX-License-Identifier: Apache-2.0
// Which seeds a random test runs. STROBE_SEED=n: the one case of that seed. STROBE_FIRST_SEED, STROBE_SEEDS and
// STROBE_STRIDE: where to begin, how many, and how far apart.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace strobe::test {

inline std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// As the environment says; `count` from 1 on where it says nothing.
inline std::vector<std::uint64_t> chosen_seeds(std::uint64_t count) {
  const std::uint64_t only = number_from("STROBE_SEED", 0);
  if (only != 0) return {only};
  const std::uint64_t first = number_from("STROBE_FIRST_SEED", 1);
  const std::uint64_t stride = number_from("STROBE_STRIDE", 1);
  std::vector<std::uint64_t> seeds(number_from("STROBE_SEEDS", count));
  for (std::uint64_t index = 0; index < seeds.size(); ++index) seeds[index] = first + index * stride;
  return seeds;
}

}  // namespace strobe::test
