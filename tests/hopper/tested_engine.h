// SPDX-License-Identifier: Apache-2.0
// Which GPU engine the tests of this folder run: STROBE_ENGINE=ampere, or hopper. Those that are about one engine's own
// design do not ask.
#pragma once

#include <cstdlib>
#include <string_view>

#include "ampere/backward.h"
#include "ampere/forward.h"
#include "attention/seeds.h"
#include "hopper/backward.h"
#include "hopper/forward.h"
#include "runtime/device.h"

namespace strobe::test {

inline Engine tested_engine() {
  const char* const name = std::getenv("STROBE_ENGINE");
  return name != nullptr && std::string_view(name) == "ampere" ? Engine::ampere : Engine::hopper;
}

inline bool serves(const runtime::CudaDevice& device) {
  return tested_engine() == Engine::ampere ? device.compute_major >= 8 : device.compute_major == 9;
}

/// While it lives, plans take debug variants where `debug`. Others change nothing of the Hopper engine's forward: where
/// a variant is changed, it takes none of another engine's kernels. STROBE_SHARED_KB: the Ampere engine's tiles for
/// devices whose CTAs have so much shared memory.
class TestedVariants {
 public:
  explicit TestedVariants(bool debug)
      : hopper_forward_(debug ? [](hopper::forward::Config& config) { config.debug = true; }
                              : hopper::VariantScope::Change()),
        hopper_backward_([debug](auto& config, auto&) { config.debug = debug; }),
        ampere_forward_({.device = limit_shared_memory,
                         .config = [debug](ampere::forward::Config& config) { config.debug = debug; }}),
        ampere_backward_({.device = limit_shared_memory,
                          .config = [debug](ampere::backward::Config& config) { config.debug = debug; }}) {}

 private:
  static void limit_shared_memory(ampere::DeviceShape& shape) {
    const auto kilobytes = static_cast<int>(number_from("STROBE_SHARED_KB", 0));
    if (kilobytes != 0) shape.shared_bytes = kilobytes << 10;
  }

  hopper::VariantScope hopper_forward_;
  hopper::BackwardScope hopper_backward_;
  ampere::ForwardScope ampere_forward_;
  ampere::BackwardScope ampere_backward_;
};

}  // namespace strobe::test
