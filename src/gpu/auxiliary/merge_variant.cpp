// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/merge_variant.h"

#include <fmt/format.h>

#include <string>

namespace strobe::gpu {

runtime::Variant merge_variant(const auxiliary::MergeConfig& config, std::string_view architecture) {
  return {.name = fmt::format("merge ({} to {}, {} parts)", name_of(config.source), name_of(config.destination),
                              config.most_parts),
          .include = "kernels/auxiliary/combine.h",
          .expression = fmt::format("strobe::auxiliary::merge<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

runtime::Variant combine_variant(const auxiliary::CombineConfig& config, std::string_view architecture) {
  return {.name = fmt::format("combine ({})", short_text(config)),
          .include = "kernels/auxiliary/combine.h",
          .expression = fmt::format("strobe::auxiliary::combine<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

}  // namespace strobe::gpu
