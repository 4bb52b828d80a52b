// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/merge_variant.h"

#include <fmt/format.h>

#include <string>

namespace strobe::gpu {

runtime::Variant merge_variant(const steps::MergeConfig& config, std::string_view architecture) {
  return {.name = fmt::format("merge ({} to {}, {} parts)", name_of(config.source), name_of(config.destination),
                              config.most_parts),
          .include = "kernels/steps/combine.h",
          .expression = fmt::format("strobe::steps::merge<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

runtime::Variant combine_variant(const steps::CombineConfig& config, std::string_view architecture) {
  return {.name = fmt::format("combine ({})", short_text(config)),
          .include = "kernels/steps/combine.h",
          .expression = fmt::format("strobe::steps::combine<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

}  // namespace strobe::gpu
