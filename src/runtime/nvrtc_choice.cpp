// SPDX-License-Identifier: Apache-2.0
#include "runtime/nvrtc_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace strobe::runtime {

int architecture_number(std::string_view architecture) {
  const std::size_t begin = std::min(architecture.find_first_of("0123456789"), architecture.size());
  int number = 0;
  std::from_chars(architecture.data() + begin, architecture.data() + architecture.size(), number);
  return number;
}

std::string rejection(const NvrtcCandidate& candidate, const CubinTarget& target) {
  if (candidate.version > target.newest) {
    return target.newest.minor == NvrtcVersion::kAnyMinor
               ? fmt::format("its kernels need a driver for CUDA {}", candidate.version.major)
               : fmt::format("the driver rejects kernels of versions after {}", to_string(target.newest));
  }
  const int architecture = architecture_number(target.architecture);
  if (architecture != 0 && std::ranges::find(candidate.architectures, architecture) == candidate.architectures.end()) {
    return fmt::format("it does not compile for {}", target.architecture);
  }
  return {};
}

std::optional<std::size_t> choose_nvrtc(std::span<const NvrtcCandidate> candidates, const CubinTarget& target) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!rejection(candidates[i], target).empty()) continue;
    if (candidates[i].version >= kPreferredNvrtc) return i;
    if (!best.has_value() || candidates[*best].version < candidates[i].version) best = i;
  }
  return best;
}

}  // namespace strobe::runtime
