// SPDX-License-Identifier: Apache-2.0
// The fields of a row format in a variant.
#pragma once

#include <string_view>

#include "call/row_format.h"
#include "gpu/variant/fields.h"
#include "kernels/math/row_format.h"

namespace strobe {

constexpr std::string_view type_name(StoredElement) { return "strobe::StoredElement"; }
constexpr std::string_view name_of(StoredElement element) { return name_of(static_cast<RowElement>(element)); }
constexpr std::string_view type_name(StoredScale) { return "strobe::StoredScale"; }
constexpr std::string_view name_of(StoredScale scale) {
  return scale == StoredScale::none ? "none" : name_of(static_cast<RowScale>(scale));
}

constexpr std::string_view type_name(const StoredPart&) { return "strobe::StoredPart"; }
constexpr auto fields_of(const StoredPart&) {
  using Part = StoredPart;
  return gpu::all_fields(gpu::field("element", &Part::element), gpu::field("columns", &Part::columns),
                         gpu::field("offset", &Part::offset), gpu::field("scale", &Part::scale),
                         gpu::field("scale_columns", &Part::scale_columns),
                         gpu::field("scale_offset", &Part::scale_offset));
}

constexpr std::string_view type_name(const StoredFormat&) { return "strobe::StoredFormat"; }
constexpr auto fields_of(const StoredFormat&) {
  using Format = StoredFormat;
  return gpu::all_fields(gpu::field("first", &Format::first), gpu::field("second", &Format::second),
                         gpu::field("third", &Format::third), gpu::field("fourth", &Format::fourth),
                         gpu::field("part_count", &Format::part_count), gpu::field("row_bytes", &Format::row_bytes),
                         gpu::field("tail_bytes", &Format::tail_bytes), gpu::field("alignment", &Format::alignment));
}

}  // namespace strobe
