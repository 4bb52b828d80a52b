// SPDX-License-Identifier: Apache-2.0
#include "sm80/forward_variant.h"

#include <fmt/format.h>

#include "gpu/variant/architecture.h"
#include "gpu/variant/text_code.h"

namespace strobe::sm80 {

std::string architecture_of(const DeviceShape& shape) { return gpu::family_architecture(shape.compute_major); }

runtime::Variant forward_variant(const forward::Config& config, const DeviceShape& shape) {
  return {.name = fmt::format("sm80 forward ({})", gpu::short_text(config)),
          .include = "kernels/sm80/forward/kernel.h",
          .expression = fmt::format("strobe::sm80::forward::kernel<{}>", gpu::cpp_text(config)),
          .architecture = architecture_of(shape),
          .code = gpu::code_of(config.rule.text),
          .options = gpu::forward_options(config.rule)};
}

}  // namespace strobe::sm80
