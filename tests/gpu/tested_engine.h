// SPDX-License-Identifier: Apache-2.0
// Which family of kernels a test runs: the one it is instantiated for, or sm90 where it is about that family's own
// design.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "attention/seeds.h"
#include "gpu/call/override.h"
#include "gpu/plan/device.h"
#include "kernels/sm80/backward/config.h"
#include "kernels/sm80/forward/config.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/forward/config.h"
#include "runtime/device.h"
#include "strobe/attention.h"

namespace strobe::test {

enum class Family : std::uint8_t { sm90, sm80 };

inline const char* name_of(Family family) { return family == Family::sm80 ? "sm80" : "sm90"; }

/// The running test's, which its fixture sets.
inline Family& tested_family() {
  static Family family = Family::sm90;
  return family;
}

inline std::string_view tested_kernels() { return name_of(tested_family()); }

/// Asks for sm80's kernels. Otherwise the engine chooses, which takes sm90's for all but few query rows and rows of
/// pages.
inline Execution tested_execution(void* stream = nullptr) {
  Execution execution{.engine = Engine::gpu, .stream = stream};
  if (tested_family() == Family::sm80) execution.kernels = "sm80";
  return execution;
}

inline bool serves(const runtime::CudaDevice& device) {
  return tested_family() == Family::sm80 ? device.compute_major >= 8 : device.compute_major == 9;
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
