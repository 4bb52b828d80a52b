// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/quantize_variant.h"

#include <fmt/format.h>

#include <string>

namespace strobe::gpu {

runtime::Variant quantize_variant(const auxiliary::QuantizeConfig& config, std::string_view architecture) {
  return {.name = fmt::format("quantize ({})", short_text(config)),
          .include = "kernels/auxiliary/quantize.h",
          .expression = fmt::format("strobe::auxiliary::quantize<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

runtime::Variant key_sums_variant(const auxiliary::KeyMeanConfig& config, std::string_view architecture) {
  return {.name = fmt::format("sums of keys ({})", short_text(config)),
          .include = "kernels/auxiliary/key_mean.h",
          .expression = fmt::format("strobe::auxiliary::sum_keys<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

runtime::Variant key_mean_variant(int head_dim, std::string_view architecture) {
  return {.name = fmt::format("mean of keys (head_dim {})", head_dim),
          .include = "kernels/auxiliary/key_mean.h",
          .expression = fmt::format("strobe::auxiliary::finish_key_mean<{}>", head_dim),
          .architecture = std::string(architecture),
          .options = {}};
}

}  // namespace strobe::gpu
