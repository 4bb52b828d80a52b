// SPDX-License-Identifier: Apache-2.0
// Devices by name, as their data sheets describe them: to plan for GPUs that are not there.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "gpu/plan/device.h"

namespace strobe::gpu {

struct NamedDevice {
  std::string_view name;
  DeviceShape shape;
};

constexpr DeviceShape device_shape(int major, int minor, int multiprocessors, int l2_mb, int shared_kb,
                                   double terabytes, double gigahertz, double product_share = 1.0) {
  return {.compute_major = major,
          .compute_minor = minor,
          .multiprocessors = multiprocessors,
          .l2_bytes = static_cast<std::size_t>(l2_mb) << 20U,
          .shared_bytes = shared_kb << 10,
          .memory_bandwidth = 1e12 * terabytes,
          .clock = 1e9 * gigahertz,
          .product_share = product_share};
}

/// Source: NVIDIA's data sheets and architecture whitepapers; shared memory: CUDA Programming Guide, "Compute
/// Capabilities". H100 and H200 as their drivers say.
inline constexpr std::array kKnownDevices = {
    NamedDevice{"A100", device_shape(8, 0, 108, 40, 163, 1.56, 1.41)},
    NamedDevice{"A100 80GB", device_shape(8, 0, 108, 40, 163, 2.04, 1.41)},
    NamedDevice{"A30", device_shape(8, 0, 56, 24, 163, 0.93, 1.44)},
    NamedDevice{"A10", device_shape(8, 6, 72, 6, 99, 0.6, 1.7)},
    NamedDevice{"RTX 3090", device_shape(8, 6, 82, 6, 99, 0.94, 1.7, 0.5)},
    NamedDevice{"Jetson Orin", device_shape(8, 7, 16, 4, 163, 0.2, 1.3)},
    NamedDevice{"L4", device_shape(8, 9, 58, 48, 99, 0.3, 2.04)},
    NamedDevice{"L40S", device_shape(8, 9, 142, 96, 99, 0.86, 2.52)},
    NamedDevice{"RTX 4090", device_shape(8, 9, 128, 72, 99, 1.01, 2.52, 0.5)},
    NamedDevice{"H100", device_shape(9, 0, 132, 50, 227, 3.35, 1.98)},
    NamedDevice{"H100 PCIe", device_shape(9, 0, 114, 50, 227, 2.0, 1.755)},
    NamedDevice{"H100 NVL", device_shape(9, 0, 132, 50, 227, 3.9, 1.785)},
    NamedDevice{"H800", device_shape(9, 0, 132, 50, 227, 3.35, 1.98)},
    NamedDevice{"H200", device_shape(9, 0, 132, 60, 227, 4.92, 1.98)},
    NamedDevice{"GH200", device_shape(9, 0, 132, 60, 227, 4.0, 1.98)},
    NamedDevice{"H20", device_shape(9, 0, 78, 60, 227, 4.0, 1.98, 0.25)},
    NamedDevice{"B200", device_shape(10, 0, 148, 126, 227, 8.0, 1.9)},
    NamedDevice{"RTX 5090", device_shape(12, 0, 170, 96, 99, 1.79, 2.41, 0.5)},
};

/// By name, which must be one of these.
constexpr const DeviceShape& device_named(std::string_view name) {
  return std::ranges::find(kKnownDevices, name, &NamedDevice::name)->shape;
}

}  // namespace strobe::gpu
