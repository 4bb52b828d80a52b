// SPDX-License-Identifier: Apache-2.0
// The kernel of strobe::append for the kernel store.
#pragma once

#include <string_view>

#include "gpu/variant/fields.h"
#include "gpu/variant/score_fields.h"
#include "kernels/auxiliary/append_params.h"
#include "runtime/variant.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(Rotation) { return "strobe::auxiliary::Rotation"; }
constexpr std::string_view name_of(Rotation rotation) {
  return rotation == Rotation::none ? "none" : rotation == Rotation::halves ? "halves" : "interleaved";
}

constexpr std::string_view type_name(const AppendConfig&) { return "strobe::auxiliary::AppendConfig"; }
constexpr auto fields_of(const AppendConfig&) {
  using Config = AppendConfig;
  using gpu::field;
  return gpu::all_fields(field("source", &Config::source), field("cache", &Config::cache),
                         field("rotation", &Config::rotation), field("aligned", &Config::aligned),
                         field("row_scales", &Config::row_scales));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

runtime::Variant append_variant(const auxiliary::AppendConfig& config, std::string_view architecture);

}  // namespace strobe::gpu
