// SPDX-License-Identifier: Apache-2.0
#include "hopper/forward_variant.h"

#include <fmt/format.h>

namespace strobe::hopper {

runtime::Variant forward_variant(const forward::Config& config) {
  return {.name = fmt::format("hopper forward ({})", gpu::short_text(config)),
          .include = "kernels/hopper/forward/kernel.h",
          .expression = fmt::format("strobe::hopper::forward::kernel<{}>", gpu::cpp_text(config)),
          .architecture = "sm_90a",
          .options = {}};
}

}  // namespace strobe::hopper
