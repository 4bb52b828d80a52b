// SPDX-License-Identifier: Apache-2.0
// The forward kernel's variants for the kernel store: name, source and hash from one list of the fields.
#pragma once

#include <string>
#include <string_view>

#include "gpu/plan/device.h"
#include "gpu/variant/score_fields.h"
#include "kernels/sm80/forward/config.h"
#include "runtime/variant.h"

namespace strobe::sm80 {

using gpu::DeviceShape;

/// What kernels for a device are compiled for: what is compiled for compute capability 8.0 runs on 8.6
/// and 8.9, too, and so with every other major number.
std::string architecture_of(const DeviceShape& shape);

/// The kernel of a variant for a device, for the kernel store.
runtime::Variant forward_variant(const forward::Config& config, const DeviceShape& shape);

namespace forward {

constexpr std::string_view type_name(const Config&) { return "strobe::sm80::forward::Config"; }
constexpr auto fields_of(const Config&) {
  using gpu::field;
  return gpu::all_fields(field("rule", &Config::rule), field("head_dim", &Config::head_dim),
                         field("head_dim_v", &Config::head_dim_v), field("warps", &Config::warps),
                         field("key_groups", &Config::key_groups), field("column_warps", &Config::column_warps),
                         field("rows_per_warp", &Config::rows_per_warp), field("block_n", &Config::block_n),
                         field("stages", &Config::stages), field("slice_columns", &Config::slice_columns),
                         field("q_in_registers", &Config::q_in_registers), field("ctas_per_sm", &Config::ctas_per_sm),
                         field("packed_heads", &Config::packed_heads), field("schedule", &Config::schedule),
                         field("segment_blocks", &Config::segment_blocks), field("pages", &Config::pages),
                         field("entries", &Config::entries), field("stored", &Config::stored),
                         field("stored_operands", &Config::stored_operands), field("row_scales", &Config::row_scales),
                         field("chunks_at_once", &Config::chunks_at_once), field("copies_first", &Config::copies_first),
                         field("pages_ahead", &Config::pages_ahead), field("page_rows", &Config::page_rows),
                         field("keeps_work", &Config::keeps_work), field("debug", &Config::debug));
}

}  // namespace forward
}  // namespace strobe::sm80
