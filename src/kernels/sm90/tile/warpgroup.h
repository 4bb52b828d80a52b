// SPDX-License-Identifier: Apache-2.0
// Sizes of a warpgroup and of its share of a tile. Plain constexpr C++, shared by host and device.
#pragma once

namespace strobe::sm90 {

inline constexpr int kWarpSize = 32;
inline constexpr int kWarpsPerWarpgroup = 4;
inline constexpr int kWarpgroupSize = kWarpSize * kWarpsPerWarpgroup;
inline constexpr int kRowsPerWarpgroup = 64;  // M of every WGMMA
inline constexpr int kRowsPerWarp = kRowsPerWarpgroup / kWarpsPerWarpgroup;

}  // namespace strobe::sm90
