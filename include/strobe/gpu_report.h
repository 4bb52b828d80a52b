// SPDX-License-Identifier: Apache-2.0
// What the GPU engine finds on this machine.
#pragma once

#include <string>
#include <vector>

#include "strobe/cxx20.h"
#include "strobe/export.h"

namespace strobe {

/// For people; `strobe info` prints it. @experimental
struct GpuReport {
  std::string driver{};                // the CUDA version that it is for and what it loads, or why there is none
  std::vector<std::string> devices{};  // one line each: name, compute capability, memory
  std::string pack{};                  // the kernels compiled ahead, and whether the driver loads them
  // The same of each pack of kernels installed beside the library, or why it is not used.
  std::vector<std::string> installed_packs{};
  std::vector<std::string> compiler{};  // the NVRTC chosen for other kernels and why; then why not each of the others
  std::string cache{};                  // the folder that keeps what is compiled here, or why it cannot be used
  std::vector<std::string> tuned{};     // for each device: the choices of `strobe tune` that plans take, or why none
};

/// Opens the driver and looks for NVRTC, as the first call on a GPU does; compiles nothing and allocates nothing.
/// @experimental
STROBE_API GpuReport gpu_report();

}  // namespace strobe
