// SPDX-License-Identifier: Apache-2.0
// One kernel that can be had, as plain text: what `plan` hands over and the store looks up.
#pragma once

#include <string>
#include <vector>

namespace strobe::runtime {

struct Variant {
  std::string name;                  // for people; not part of what the kernel is
  std::string include;               // the header that defines it, from src: "kernels/FOLDER/kernel.h"
  std::string expression;            // the kernel as C++ names it: "strobe::kernel<strobe::Config{...}>"
  std::string architecture;          // "sm_90a"
  std::string code = {};             // of this kernel alone, before the header: what it calls by name
  std::vector<std::string> options;  // further NVRTC options, for kernels that are meant to have them
};

}  // namespace strobe::runtime
