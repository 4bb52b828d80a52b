// SPDX-License-Identifier: Apache-2.0
// One kernel that can be had, as plain text: what `plan` hands over and the store looks up.
#pragma once

#include <string>
#include <vector>

namespace strobe::runtime {

struct Variant {
  std::string name;                  // for people: "sm90 forward bf16 d128 causal"; not part of what the kernel is
  std::string include;               // the header that defines it, from src: "kernels/sm90/forward/forward.h"
  std::string expression;            // the kernel as C++ names it: "strobe::sm90::forward<strobe::KernelConfig{...}>"
  std::string architecture;          // "sm_90a"
  std::vector<std::string> options;  // further NVRTC options, for kernels that are meant to have them
};

}  // namespace strobe::runtime
