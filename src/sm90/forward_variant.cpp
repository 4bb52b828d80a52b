// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward_variant.h"

#include <fmt/format.h>

#include "gpu/variant/architecture.h"
#include "gpu/variant/text_code.h"

namespace strobe::sm90 {

runtime::Variant forward_variant(const forward::Config& config) {
  return {.name = fmt::format("sm90 forward ({})", gpu::short_text(config)),
          .include = "kernels/sm90/forward/kernel.h",
          .expression = fmt::format("strobe::sm90::forward::kernel<{}>", gpu::cpp_text(config)),
          .architecture = std::string(gpu::kSm90a),
          .code = gpu::code_of(config.rule.text),
          .options = gpu::forward_options(config.rule)};
}

}  // namespace strobe::sm90
