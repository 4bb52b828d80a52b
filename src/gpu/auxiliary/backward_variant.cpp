// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/backward_variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "gpu/variant/score_fields.h"

namespace strobe::gpu {

runtime::Variant prepare_variant(auxiliary::PrepareBackwardConfig config, std::string_view architecture) {
  config.offsets = false;  // each row by itself
  return {.name = fmt::format("prepare backward ({})", short_text(config)),
          .include = "kernels/auxiliary/prepare_backward.h",
          .expression = fmt::format("strobe::auxiliary::prepare_backward<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

runtime::Variant large_rows_variant(const auxiliary::PrepareBackwardConfig& config, std::string_view architecture) {
  return {.name = fmt::format("large rows ({})", short_text(config)),
          .include = "kernels/auxiliary/large_rows.h",
          .expression = fmt::format("strobe::auxiliary::find_large_rows<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

runtime::Variant sink_variant(std::string_view architecture) {
  return {.name = "sink gradient",
          .include = "kernels/auxiliary/sink_gradient.h",
          .expression = "strobe::auxiliary::sink_gradient",
          .architecture = std::string(architecture),
          .options = {}};
}

auxiliary::PrepareBackwardConfig prepare_config(const AttentionProblem& problem, const ScoreRule& rule) {
  // Threads that read a row of O and of dO together, 16 bytes each.
  const std::int64_t bytes = problem.head_dim_v * bytes_of(rule.element);
  constexpr std::int64_t kMostThreads = 32;
  const auto chunks = static_cast<std::uint64_t>(std::clamp<std::int64_t>(bytes / 16, 8, kMostThreads));
  return {.element = rule.element,
          .varlen = rule.varlen,
          .offsets = rule.offsets,
          .threads_per_row = static_cast<int>(std::bit_ceil(chunks)),
          .two_chunks = rule.element == Element::fp32 || bytes / 16 > kMostThreads,
          .normalized = rule.normalized};
}

}  // namespace strobe::gpu
