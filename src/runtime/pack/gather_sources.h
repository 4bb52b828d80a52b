// SPDX-License-Identifier: Apache-2.0
// Collects every header that kernels include, so that run-time compiling needs NVRTC and nothing else.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/nvrtc.h"

namespace strobe::runtime {

/// The bytes of an archive that holds the project's headers under `kernels` (named "kernels/...") and those CUDA
/// headers from `include_folders` that they reach when compiled for any of `architectures`, and the digests that name
/// kernels by what they include. Each of our headers must compile by itself with NVRTC; the Status says where the first
/// does not.
Result<std::string> gather_sources(const Nvrtc& nvrtc, const std::filesystem::path& kernels,
                                   const std::vector<std::filesystem::path>& include_folders,
                                   const std::vector<std::string>& architectures);

}  // namespace strobe::runtime
