// SPDX-License-Identifier: Apache-2.0
// What NVRTC compiles kernels for.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace strobe::gpu {

/// Compute capability 9.0 with the instructions that no later one has: WGMMA among them.
inline constexpr std::string_view kSm90a = "sm_90a";

/// Code for every compute capability of a major number: what is compiled for 8.0 runs on 8.6 and 8.9, too.
inline std::string family_architecture(int compute_major) { return fmt::format("sm_{}0", compute_major); }

/// Of the kernels that all families share, as the pack has them for the device: a runtime::CudaDevice or DeviceShape.
template <class Device>
std::string architecture_of(const Device& device) {
  if (device.compute_major == 9 && device.compute_minor == 0) return std::string(kSm90a);
  return family_architecture(device.compute_major);
}

}  // namespace strobe::gpu
