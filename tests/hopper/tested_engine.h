// SPDX-License-Identifier: Apache-2.0
// Which kernels the tests of this folder run: STROBE_KERNELS=sm80 asks for those of that family. Otherwise the engine
// chooses, which takes sm90's for all but few query rows. Tests of one family's own design do not ask.
#pragma once

#include <cstdlib>
#include <optional>
#include <string_view>

#include "attention/seeds.h"
#include "gpu/call/override.h"
#include "gpu/plan/device.h"
#include "kernels/sm80/backward/config.h"
#include "kernels/sm80/forward/config.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/forward/config.h"
#include "strobe/attention.h"

namespace strobe::test {

inline std::string_view tested_kernels() {
  const char* const name = std::getenv("STROBE_KERNELS");
  return name != nullptr && std::string_view(name) == "sm80" ? "sm80" : "sm90";
}

inline Execution tested_execution(void* stream = nullptr) {
  Execution execution{.engine = Engine::gpu, .stream = stream};
  if (tested_kernels() == "sm80") execution.kernels = "sm80";
  return execution;
}

inline bool serves(const runtime::CudaDevice& device) {
  return tested_kernels() == "sm80" ? device.compute_major >= 8 : device.compute_major == 9;
}

/// While it lives, plans take debug variants where `debug`. Others override nothing of sm90's forward: where its
/// variant is overridden, it hands no call on. STROBE_SHARED_KB: tiles for devices whose CTAs have so much shared
/// memory.
class TestedVariants {
 public:
  explicit TestedVariants(bool debug) : device_(limit_shared_memory) {
    if (!debug) return;
    sm90_forward_.emplace([](auto& config) { config.debug = true; });
    sm90_backward_.emplace([](auto& config) { config.debug = true; });
    sm80_forward_.emplace([](auto& config) { config.debug = true; });
    sm80_backward_.emplace([](auto& config) { config.debug = true; });
  }

 private:
  static void limit_shared_memory(gpu::DeviceShape& shape) {
    const auto kilobytes = static_cast<int>(number_from("STROBE_SHARED_KB", 0));
    if (kilobytes != 0) shape.shared_bytes = kilobytes << 10;
  }

  gpu::Override<gpu::DeviceShape> device_;
  std::optional<gpu::Override<sm90::forward::Config>> sm90_forward_;
  std::optional<gpu::Override<sm90::backward::Config>> sm90_backward_;
  std::optional<gpu::Override<sm80::forward::Config>> sm80_forward_;
  std::optional<gpu::Override<sm80::backward::Config>> sm80_backward_;
};

}  // namespace strobe::test
