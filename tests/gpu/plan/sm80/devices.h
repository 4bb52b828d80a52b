// SPDX-License-Identifier: Apache-2.0
// The devices that plans of the sm80 kernels are tested for.
#pragma once

#include <array>
#include <string_view>

#include "gpu/plan/device.h"

namespace strobe::test {

struct NamedDevice {
  std::string_view name;
  gpu::DeviceShape shape;
};

/// Source: NVIDIA's architecture whitepapers; shared memory: CUDA Programming Guide, "Compute Capabilities".
inline constexpr std::array kDevices = {
    NamedDevice{"A100", {8, 0, 108, 40 << 20, 163 << 10}},   NamedDevice{"A30", {8, 0, 56, 24 << 20, 163 << 10}},
    NamedDevice{"RTX 3090", {8, 6, 82, 6 << 20, 99 << 10}},  NamedDevice{"Jetson Orin", {8, 7, 16, 4 << 20, 163 << 10}},
    NamedDevice{"L4", {8, 9, 58, 48 << 20, 99 << 10}},       NamedDevice{"RTX 4090", {8, 9, 128, 72 << 20, 99 << 10}},
    NamedDevice{"H100", {9, 0, 132, 50 << 20, 227 << 10}},   NamedDevice{"H200", {9, 0, 132, 60 << 20, 227 << 10}},
    NamedDevice{"B200", {10, 0, 148, 126 << 20, 227 << 10}}, NamedDevice{"RTX 5090", {12, 0, 170, 96 << 20, 99 << 10}},
};

}  // namespace strobe::test
