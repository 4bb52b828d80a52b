// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward_variant.h"

#include <fmt/format.h>

#include "gpu/variant/architecture.h"
#include "gpu/variant/text_code.h"

namespace strobe::sm90 {
namespace {

template <class Config>
runtime::Variant variant_of(std::string_view name, std::string_view header, std::string_view kernel,
                            const Config& config) {
  return {.name = fmt::format("{} ({})", name, gpu::short_text(config)),
          .include = fmt::format("kernels/{}", header),
          .expression = fmt::format("strobe::{}<{}>", kernel, gpu::cpp_text(config)),
          .architecture = std::string(gpu::kSm90a),
          .code = gpu::code_of(config.rule.text),
          .options = {}};
}

}  // namespace

runtime::Variant backward_variant(const backward::Config& config) {
  if (config.wide) {
    return variant_of("sm90 backward", "sm90/backward/wide/kernel.h", "sm90::backward::wide_kernel", config);
  }
  return config.by_roles
             ? variant_of("sm90 backward", "sm90/backward/roles/kernel.h", "sm90::backward::roles_kernel", config)
             : variant_of("sm90 backward", "sm90/backward/joint/kernel.h", "sm90::backward::joint_kernel", config);
}

runtime::Variant finish_variant(const backward::Config& config) {
  return variant_of("sm90 backward, dQ of sums", "sm90/backward/joint/finish.h",
                    "sm90::backward::finish_query_gradient", config);
}

runtime::Variant finish_keys_variant(backward::Config config) {
  config.ordered = config.alternates = config.dp_ahead = false;  // one for all ways to dQ
  config.staged_dq = true;
  return variant_of("sm90 backward, dK and dV of sums", "sm90/backward/finish_keys.h",
                    "sm90::backward::finish_key_gradients", config);
}

runtime::Variant query_gradient_variant(const backward::QueryGradientConfig& config) {
  return variant_of("sm90 backward, dQ of dS", "sm90/backward/query_gradient/kernel.h",
                    "sm90::backward::query_gradient", config);
}

runtime::Variant bias_gradient_variant(const backward::Config& config) {
  return variant_of("sm90 backward, bias", "sm90/backward/bias_gradient/kernel.h", "sm90::backward::bias_gradient",
                    config);
}

runtime::Variant capture_gradient_variant(const backward::Config& config) {
  return variant_of("sm90 backward, captures", "sm90/backward/capture_gradient/kernel.h",
                    "sm90::backward::capture_gradient", config);
}

}  // namespace strobe::sm90
