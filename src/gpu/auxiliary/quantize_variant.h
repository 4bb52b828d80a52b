// SPDX-License-Identifier: Apache-2.0
// The quantiser's kernels for the kernel store.
#pragma once

#include <string_view>

#include "gpu/variant/fields.h"
#include "gpu/variant/score_fields.h"
#include "kernels/auxiliary/quantize_params.h"
#include "runtime/variant.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(const QuantizeConfig&) { return "strobe::auxiliary::QuantizeConfig"; }
constexpr auto fields_of(const QuantizeConfig&) {
  using Config = QuantizeConfig;
  using gpu::field;
  return gpu::all_fields(field("source", &Config::source), field("head_dim", &Config::head_dim),
                         field("head_dim_v", &Config::head_dim_v), field("e4m3", &Config::e4m3),
                         field("aligned", &Config::aligned), field("measure", &Config::measure),
                         field("packed", &Config::packed), field("whole_blocks", &Config::whole_blocks));
}

constexpr std::string_view type_name(const KeyMeanConfig&) { return "strobe::auxiliary::KeyMeanConfig"; }
constexpr auto fields_of(const KeyMeanConfig&) {
  using Config = KeyMeanConfig;
  using gpu::field;
  return gpu::all_fields(field("source", &Config::source), field("head_dim", &Config::head_dim),
                         field("aligned", &Config::aligned), field("packed", &Config::packed));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

/// Rounds, or finds the largest magnitudes of large units.
runtime::Variant quantize_variant(const auxiliary::QuantizeConfig& config, std::string_view architecture);

/// Sums of blocks of keys.
runtime::Variant key_sums_variant(const auxiliary::KeyMeanConfig& config, std::string_view architecture);

/// The mean of their sums.
runtime::Variant key_mean_variant(int head_dim, std::string_view architecture);

}  // namespace strobe::gpu
