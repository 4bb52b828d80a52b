// SPDX-License-Identifier: Apache-2.0
// Which family of kernels a test runs: the one it is instantiated for, or sm90 where it is about that family's own
// design.
#pragma once

#include <cstdint>

#include "attention/seeds.h"
#include "runtime/device.h"
#include "sm80/backward.h"
#include "sm80/forward.h"
#include "sm90/backward.h"
#include "sm90/forward.h"

namespace strobe::test {

enum class Family : std::uint8_t { sm90, sm80 };

inline const char* name_of(Family family) { return family == Family::sm80 ? "sm80" : "sm90"; }

/// The running test's, which its fixture sets.
inline Family& tested_family() {
  static Family family = Family::sm90;
  return family;
}

inline Engine tested_engine() { return tested_family() == Family::sm80 ? Engine::ampere : Engine::hopper; }

inline bool serves(const runtime::CudaDevice& device) {
  return tested_family() == Family::sm80 ? device.compute_major >= 8 : device.compute_major == 9;
}

/// While it lives, plans take debug variants where `debug`. Others change nothing of an sm90 forward: where
/// a variant is changed, it takes none of another family's kernels. STROBE_SHARED_KB: the sm80 tiles for
/// devices whose CTAs have so much shared memory.
class TestedVariants {
 public:
  explicit TestedVariants(bool debug)
      : sm90_forward_(debug ? [](sm90::forward::Config& config) { config.debug = true; }
                            : sm90::VariantScope::Change()),
        sm90_backward_([debug](auto& config, auto&) { config.debug = debug; }),
        sm80_forward_({.device = limit_shared_memory,
                       .config = [debug](sm80::forward::Config& config) { config.debug = debug; }}),
        sm80_backward_({.device = limit_shared_memory,
                        .config = [debug](sm80::backward::Config& config) { config.debug = debug; }}) {}

 private:
  static void limit_shared_memory(sm80::DeviceShape& shape) {
    const auto kilobytes = static_cast<int>(number_from("STROBE_SHARED_KB", 0));
    if (kilobytes != 0) shape.shared_bytes = kilobytes << 10;
  }

  sm90::VariantScope sm90_forward_;
  sm90::BackwardScope sm90_backward_;
  sm80::ForwardScope sm80_forward_;
  sm80::BackwardScope sm80_backward_;
};

}  // namespace strobe::test
