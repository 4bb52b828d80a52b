// SPDX-License-Identifier: Apache-2.0
// The kernels that combine partial results, for the kernel store.
#pragma once

#include <string_view>

#include "gpu/auxiliary/quantize_variant.h"
#include "gpu/variant/fields.h"
#include "gpu/variant/score_fields.h"
#include "kernels/auxiliary/combine_params.h"
#include "runtime/variant.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(const MergeConfig&) { return "strobe::auxiliary::MergeConfig"; }
constexpr auto fields_of(const MergeConfig&) {
  using Config = MergeConfig;
  using gpu::field;
  return gpu::all_fields(field("source", &Config::source), field("destination", &Config::destination),
                         field("aligned", &Config::aligned), field("most_parts", &Config::most_parts));
}

constexpr std::string_view type_name(const CombineConfig&) { return "strobe::auxiliary::CombineConfig"; }
constexpr auto fields_of(const CombineConfig&) {
  using Config = CombineConfig;
  using gpu::field;
  return gpu::all_fields(field("element", &Config::element), field("head_dim_v", &Config::head_dim_v),
                         field("few_parts", &Config::few_parts), field("varlen", &Config::varlen),
                         field("segments", &Config::segments), field("sink", &Config::sink),
                         field("normalized", &Config::normalized));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

/// The variant of the kernel of strobe::merge.
runtime::Variant merge_variant(const auxiliary::MergeConfig& config, std::string_view architecture);

/// The variant of the kernel that combines the parts of a forward whose keys were split.
runtime::Variant combine_variant(const auxiliary::CombineConfig& config, std::string_view architecture);

}  // namespace strobe::gpu
