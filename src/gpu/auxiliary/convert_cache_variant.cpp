// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/convert_cache_variant.h"

#include <fmt/format.h>

#include <string>

#include "gpu/params/element.h"

namespace strobe::gpu {

auxiliary::ConvertCacheConfig convert_cache_config(const AttentionProblem& problem) {
  return {.stored = element_of(problem.stored.dtype), .element = element_of(problem.dtype)};
}

runtime::Variant convert_cache_variant(const auxiliary::ConvertCacheConfig& config, std::string_view architecture) {
  return {.name = fmt::format("conversion of a cache ({})", short_text(config)),
          .include = "kernels/auxiliary/convert_cache.h",
          .expression = fmt::format("strobe::auxiliary::convert_cache<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

void list_cache_conversion(const AttentionProblem& problem, std::string_view architecture, PackList& list) {
  list.add(convert_cache_variant(convert_cache_config(problem), architecture), 0);
}

}  // namespace strobe::gpu
