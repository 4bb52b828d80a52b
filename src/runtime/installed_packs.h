// SPDX-License-Identifier: Apache-2.0
// Packs of kernels that were installed beside the library: `strobe-kernels`, or what STROBE_KERNELS names.
#pragma once

#include <string>
#include <vector>

#include "runtime/kernel_pack.h"

namespace strobe::runtime {

struct InstalledPack {
  std::string path;
  KernelPack pack;     // its bytes stay mapped until the process ends
  std::string reason;  // why it is not used; empty where it is
};

/// The packs of a place: a file, or every *.archive in a folder, by name. None where it is not there.
std::vector<InstalledPack> packs_in(const std::string& place);

/// Where the library looks: $STROBE_KERNELS, else the first of strobe_kernels/ beside the library's folder, as wheels
/// lie beside one another, and inside it, that is there. Empty where none is.
std::string packs_place();

}  // namespace strobe::runtime
