// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/listed_rows.h"

#include <fmt/format.h>

#include <string>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/params/element.h"
#include "gpu/params/row_format.h"
#include "gpu/plan/supported.h"

namespace strobe::gpu {

Status check_listed_format(std::string_view name, const RowFormat& format) {
  int index = 0;
  for (const RowPart& part : parts_of(format)) {
    if (part.columns % kPieceColumns != 0) {
      return unsupported("{}.parts[{}] has {} columns: the gpu engine takes multiples of {}; the cpu engine takes any",
                         name, index, part.columns, kPieceColumns);
    }
    if (part.scale != RowScale::none && part.scale_columns % kPieceColumns != 0) {
      return unsupported(
          "{}.parts[{}] has scales of {} columns: the gpu engine takes multiples of {}; the cpu engine takes any", name,
          index, part.scale_columns, kPieceColumns);
    }
    ++index;
  }
  return {};
}

auxiliary::ListedRowsConfig listed_rows_config(const RowFormat& format, DType dtype) {
  return {.format = stored_format(format), .element = element_of(dtype)};
}

runtime::Variant listed_rows_variant(const auxiliary::ListedRowsConfig& config, std::string_view architecture) {
  return {.name = fmt::format("rows in a format ({})", short_text(config)),
          .include = "kernels/auxiliary/listed_rows.h",
          .expression = fmt::format("strobe::auxiliary::read_listed_rows<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

auxiliary::ListedRowsParams listed_rows_params(const ConstTensorView& rows, const RowFormat& format, std::int64_t lists,
                                               std::int64_t width) {
  auxiliary::ListedRowsParams params{};
  params.cache = stored_cache(rows, format);
  params.width = Checked(width).value<int>();
  params.lists = static_cast<int>(lists);
  params.blocks = static_cast<int>(ceil_div<std::int64_t>(width, auxiliary::kListedRows));
  params.by_blocks = Divisor::of(params.blocks);
  const Checked pieces = Checked(lists == 1 ? params.cache.heads : 1) * (format.columns() / kPieceColumns);
  params.by_row_pieces = Divisor::of(pieces.value<int>());
  return params;
}

}  // namespace strobe::gpu
