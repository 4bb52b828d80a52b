// SPDX-License-Identifier: Apache-2.0
// The devices that plans are tested for.
#pragma once

#include "gpu/plan/known_devices.h"

namespace strobe::test {

using gpu::device_named;
using gpu::NamedDevice;

inline constexpr auto& kDevices = gpu::kKnownDevices;
inline constexpr gpu::DeviceShape kH100 = device_named("H100");
inline constexpr gpu::DeviceShape kH200 = device_named("H200");

}  // namespace strobe::test
