// SPDX-License-Identifier: Apache-2.0
// The variants of the backward's kernels for the kernel store: name, source and hash from one list of the fields.
#pragma once

#include <string_view>

#include "gpu/plan/device.h"
#include "gpu/variant/score_fields.h"
#include "kernels/sm80/backward/config.h"
#include "runtime/variant.h"

namespace strobe::sm80 {

using gpu::DeviceShape;

/// dK, dV and the sums of dQ.
runtime::Variant backward_variant(const backward::Config& config, const DeviceShape& shape);

/// dQ from its sums.
runtime::Variant finish_variant(const backward::Config& config, const DeviceShape& shape);

/// The bias's gradient.
runtime::Variant bias_gradient_variant(const backward::Config& config, const DeviceShape& shape);

/// The gradients of captures.
runtime::Variant capture_gradient_variant(const backward::Config& config, const DeviceShape& shape);

namespace backward {

constexpr std::string_view type_name(const Config&) { return "strobe::sm80::backward::Config"; }
constexpr auto fields_of(const Config&) {
  using gpu::field;
  return gpu::all_fields(field("rule", &Config::rule), field("head_dim", &Config::head_dim),
                         field("head_dim_v", &Config::head_dim_v), field("block_m", &Config::block_m),
                         field("part_m", &Config::part_m), field("warps", &Config::warps),
                         field("rows_per_warp", &Config::rows_per_warp), field("column_warps", &Config::column_warps),
                         field("query_slices", &Config::query_slices), field("stages", &Config::stages),
                         field("ctas_per_sm", &Config::ctas_per_sm), field("ordered", &Config::ordered),
                         field("captures", &Config::captures), field("debug", &Config::debug));
}

}  // namespace backward
}  // namespace strobe::sm80
