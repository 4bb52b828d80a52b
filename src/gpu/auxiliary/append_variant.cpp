// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/append_variant.h"

#include <fmt/format.h>

#include <string>

namespace strobe::gpu {

runtime::Variant append_variant(const auxiliary::AppendConfig& config, std::string_view architecture) {
  return {.name = fmt::format("append ({} to {}, rotation {}{}{})", name_of(config.source), name_of(config.cache),
                              name_of(config.rotation), config.row_scales ? ", scales of rows" : "",
                              config.aligned ? "" : ", not aligned"),
          .include = "kernels/auxiliary/append.h",
          .expression = fmt::format("strobe::auxiliary::append<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

}  // namespace strobe::gpu
