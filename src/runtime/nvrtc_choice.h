// SPDX-License-Identifier: Apache-2.0
// Which NVRTC may compile for a driver and a device.
//
// A driver loads machine code of its own CUDA version and of every older one. Of newer minor versions of its major one
// it is meant to load it as well (NVIDIA's "minor version compatibility"), but some drivers do not: those for CUDA 12.2
// are reported to reject the code of 12.8. Of a newer major version it loads none: the code of CUDA 13 is another ELF
// (OS/ABI 0x41 in place of 0x33), which drivers for CUDA 12 do not know.
// https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/driver.h"
#include "runtime/nvrtc.h"

namespace strobe::runtime {

/// The newest NVRTC whose code the driver is known or meant to load.
inline NvrtcVersion newest_cubin(const Driver& driver) { return {driver.major(), NvrtcVersion::kAnyMinor}; }

/// Each of the NVRTCs of a machine, in the order in which they were found, as far as the choice depends on it.
struct NvrtcCandidate {
  std::string path;
  NvrtcVersion version;
  std::vector<int> architectures;  // that it compiles for, as 90 for sm_90a
};

/// The oldest NVRTC that compiles the kernels at all.
inline constexpr NvrtcVersion kOldestNvrtc{12, 4};

/// The oldest whose kernels are as fast as those of the newest: before it, ptxas serialises WGMMAs
/// (C7515). The pack is built with it.
inline constexpr NvrtcVersion kPreferredNvrtc{12, 9};

/// Why code of that version cannot be used for the target; empty if it can. What is known of the candidate alone.
std::string rejection(const NvrtcCandidate& candidate, const CubinTarget& target);

/// The index of the candidate to take: the first usable one from kPreferredNvrtc on, else the newest usable one.
std::optional<std::size_t> choose_nvrtc(std::span<const NvrtcCandidate> candidates, const CubinTarget& target);

/// The number in an architecture's name: 90 for "sm_90a"; 0 where there is none.
int architecture_number(std::string_view architecture);

}  // namespace strobe::runtime
