// SPDX-License-Identifier: Apache-2.0
#include "gpu/params/rows.h"

#include <fmt/format.h>

#include <utility>

namespace strobe::gpu {
namespace {

std::int64_t step(std::int64_t extent, std::int64_t stride) { return extent > 1 ? stride : 0; }

}  // namespace

Status check_alignment(const RowsView& tensor, std::string_view engine) {
  if (tensor.empty()) return {};
  if (reinterpret_cast<std::uintptr_t>(tensor.view.data) % kAccessBytes != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("{} is not aligned to {} bytes, as the {} engine needs", tensor.name, kAccessBytes, engine)};
  }
  const std::int64_t elements = kAccessBytes / static_cast<std::int64_t>(size_of(tensor.view.dtype));
  for (const auto& [axis, stride] : {std::pair{"batch", step(tensor.batch(), tensor.batch_stride())},
                                     std::pair{"row", step(tensor.rows(), tensor.stride(3))},
                                     std::pair{"head", step(tensor.extent(2), tensor.stride(2))}}) {
    if (stride % elements != 0 || stride < 0) {
      return {StatusCode::unsupported, fmt::format("{} has {} stride {}: the {} engine takes multiples of {} elements",
                                                   tensor.name, axis, stride, engine, elements)};
    }
  }
  return {};
}

Rows rows_of(const RowsView& tensor) {
  return {static_cast<unsigned short*>(const_cast<void*>(tensor.view.data)), tensor.batch_stride(), tensor.stride(3),
          tensor.stride(2)};
}

Rows rows_of_pairs(const RowsView& tensor) {
  Rows rows = rows_of(tensor);
  rows.batch_stride /= 2;
  rows.row_stride /= 2;
  rows.head_stride /= 2;
  return rows;
}

}  // namespace strobe::gpu
