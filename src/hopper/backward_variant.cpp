// SPDX-License-Identifier: Apache-2.0
#include "hopper/backward_variant.h"

#include <fmt/format.h>

namespace strobe::hopper {
namespace {

constexpr std::string_view kArchitecture = "sm_90a";

template <class Config>
runtime::Variant variant_of(std::string_view name, std::string_view header, std::string_view kernel,
                            const Config& config) {
  return {.name = fmt::format("{} ({})", name, gpu::short_text(config)),
          .include = fmt::format("kernels/{}", header),
          .expression = fmt::format("strobe::{}<{}>", kernel, gpu::cpp_text(config)),
          .architecture = std::string(kArchitecture),
          .options = {}};
}

}  // namespace

runtime::Variant prepare_variant(const steps::PrepareBackwardConfig& config) {
  return gpu::prepare_variant(config, kArchitecture);
}

runtime::Variant large_rows_variant(const steps::PrepareBackwardConfig& config) {
  return gpu::large_rows_variant(config, kArchitecture);
}

runtime::Variant backward_variant(const backward::Config& config) {
  return variant_of("hopper backward", "hopper/backward/kernel.h", "hopper::backward::kernel", config);
}

runtime::Variant finish_variant(const backward::Config& config) {
  return variant_of("hopper backward, dQ of sums", "hopper/backward/finish.h",
                    "hopper::backward::finish_query_gradient", config);
}

runtime::Variant query_gradient_variant(const backward::QueryGradientConfig& config) {
  return variant_of("hopper backward, dQ of dS", "hopper/backward/query_kernel.h", "hopper::backward::query_gradient",
                    config);
}

runtime::Variant bias_gradient_variant(const backward::Config& config) {
  return variant_of("hopper backward, bias", "hopper/backward/bias_gradient.h", "hopper::backward::bias_gradient",
                    config);
}

runtime::Variant sink_variant() { return gpu::sink_variant(kArchitecture); }

}  // namespace strobe::hopper
