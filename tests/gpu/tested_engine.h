// SPDX-License-Identifier: Apache-2.0
// Which GPU engine the tests of this folder run: STROBE_ENGINE=ampere, or hopper. Those that are about one engine's own
// design do not ask.
#pragma once

#include <cstdlib>
#include <string_view>

#include "attention/seeds.h"
#include "runtime/device.h"
#include "sm80/backward.h"
#include "sm80/forward.h"
#include "sm90/backward.h"
#include "sm90/forward.h"

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
      : hopper_forward_(debug ? [](sm90::forward::Config& config) { config.debug = true; }
                              : sm90::VariantScope::Change()),
        hopper_backward_([debug](auto& config, auto&) { config.debug = debug; }),
        ampere_forward_({.device = limit_shared_memory,
                         .config = [debug](sm80::forward::Config& config) { config.debug = debug; }}),
        ampere_backward_({.device = limit_shared_memory,
                          .config = [debug](sm80::backward::Config& config) { config.debug = debug; }}) {}

 private:
  static void limit_shared_memory(sm80::DeviceShape& shape) {
    const auto kilobytes = static_cast<int>(number_from("STROBE_SHARED_KB", 0));
    if (kilobytes != 0) shape.shared_bytes = kilobytes << 10;
  }

  sm90::VariantScope hopper_forward_;
  sm90::BackwardScope hopper_backward_;
  sm80::ForwardScope ampere_forward_;
  sm80::BackwardScope ampere_backward_;
};

}  // namespace strobe::test
