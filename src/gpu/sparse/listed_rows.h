// SPDX-License-Identifier: Apache-2.0
// The kernel that reads listed rows in a format.
#pragma once

#include <string_view>

#include "gpu/variant/row_format_fields.h"
#include "gpu/variant/score_fields.h"
#include "kernels/auxiliary/listed_rows_params.h"
#include "runtime/variant.h"
#include "strobe/sparse.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(const ListedRowsConfig&) { return "strobe::auxiliary::ListedRowsConfig"; }
constexpr auto fields_of(const ListedRowsConfig&) {
  using Config = ListedRowsConfig;
  return gpu::all_fields(gpu::field("format", &Config::format), gpu::field("element", &Config::element));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

/// unsupported where kernels do not read rows of the format: those of parts or groups of scales that are no multiples
/// of eight columns. `name`: of the format.
Status check_listed_format(std::string_view name, const RowFormat& format);

auxiliary::ListedRowsConfig listed_rows_config(const RowFormat& format, DType dtype);

runtime::Variant listed_rows_variant(const auxiliary::ListedRowsConfig& config, std::string_view architecture);

/// The parameters for rows of K or of V, but for what is in the workspace. `lists`: of a query.
auxiliary::ListedRowsParams listed_rows_params(const ConstTensorView& rows, const RowFormat& format, std::int64_t lists,
                                               std::int64_t width);

}  // namespace strobe::gpu
