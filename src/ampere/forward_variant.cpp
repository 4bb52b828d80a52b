// SPDX-License-Identifier: Apache-2.0
#include "ampere/forward_variant.h"

#include <fmt/format.h>

namespace strobe::ampere {

std::string architecture_of(const DeviceShape& shape) { return fmt::format("sm_{}0", shape.compute_major); }

runtime::Variant forward_variant(const forward::Config& config, const DeviceShape& shape) {
  return {.name = fmt::format("ampere forward ({})", gpu::short_text(config)),
          .include = "kernels/ampere/forward/kernel.h",
          .expression = fmt::format("strobe::ampere::forward::kernel<{}>", gpu::cpp_text(config)),
          .architecture = architecture_of(shape),
          .options = {}};
}

}  // namespace strobe::ampere
