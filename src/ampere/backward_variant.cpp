// SPDX-License-Identifier: Apache-2.0
#include "ampere/backward_variant.h"

#include <fmt/format.h>

#include "ampere/forward_variant.h"

namespace strobe::ampere {
namespace {

runtime::Variant variant_of(std::string_view name, std::string_view header, std::string_view kernel,
                            const backward::Config& config, const DeviceShape& shape) {
  return {.name = fmt::format("{} ({})", name, gpu::short_text(config)),
          .include = fmt::format("kernels/ampere/backward/{}", header),
          .expression = fmt::format("strobe::ampere::backward::{}<{}>", kernel, gpu::cpp_text(config)),
          .architecture = architecture_of(shape),
          .options = {}};
}

}  // namespace

runtime::Variant backward_variant(const backward::Config& config, const DeviceShape& shape) {
  return variant_of("ampere backward", "kernel.h", "kernel", config, shape);
}

runtime::Variant finish_variant(const backward::Config& config, const DeviceShape& shape) {
  return variant_of("ampere backward, dQ of sums", "finish.h", "finish_query_gradient", config, shape);
}

runtime::Variant bias_gradient_variant(const backward::Config& config, const DeviceShape& shape) {
  return variant_of("ampere backward, bias", "bias_gradient.h", "bias_gradient", config, shape);
}

}  // namespace strobe::ampere
