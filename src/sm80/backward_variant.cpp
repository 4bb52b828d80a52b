// SPDX-License-Identifier: Apache-2.0
#include "sm80/backward_variant.h"

#include <fmt/format.h>

#include "gpu/variant/text_code.h"
#include "sm80/forward_variant.h"

namespace strobe::sm80 {
namespace {

runtime::Variant variant_of(std::string_view name, std::string_view header, std::string_view kernel,
                            const backward::Config& config, const DeviceShape& shape) {
  return {.name = fmt::format("{} ({})", name, gpu::short_text(config)),
          .include = fmt::format("kernels/sm80/backward/{}", header),
          .expression = fmt::format("strobe::sm80::backward::{}<{}>", kernel, gpu::cpp_text(config)),
          .architecture = architecture_of(shape),
          .code = gpu::code_of(config.rule.text),
          .options = {}};
}

}  // namespace

runtime::Variant backward_variant(const backward::Config& config, const DeviceShape& shape) {
  return variant_of("sm80 backward", "kernel.h", "kernel", config, shape);
}

runtime::Variant finish_variant(const backward::Config& config, const DeviceShape& shape) {
  return variant_of("sm80 backward, dQ of sums", "finish.h", "finish_query_gradient", config, shape);
}

runtime::Variant bias_gradient_variant(const backward::Config& config, const DeviceShape& shape) {
  return variant_of("sm80 backward, bias", "bias_gradient.h", "bias_gradient", config, shape);
}

runtime::Variant capture_gradient_variant(const backward::Config& config, const DeviceShape& shape) {
  return variant_of("sm80 backward, captures", "capture_gradient.h", "capture_gradient", config, shape);
}

}  // namespace strobe::sm80
