// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/source_places.h"

#include <algorithm>
#include <string>

#include "call/checked.h"
#include "call/row_format.h"
#include "gpu/plan/supported.h"
#include "gpu/sparse/listed_rows.h"

namespace strobe::gpu {
namespace {

/// The axes of k or v; a packed tensor is one page.
struct RowAxes {
  std::int64_t pages, rows, heads, columns;
  std::int64_t page_stride, row_stride, head_stride;

  explicit RowAxes(const ConstTensorView& rows_of) {
    const bool packed = rows_of.rank == 3;
    const std::size_t at = packed ? 0 : 1;
    pages = packed ? 1 : rows_of.shape[0];
    rows = rows_of.shape[at];
    heads = rows_of.shape[at + 1];
    columns = rows_of.shape[at + 2];
    page_stride = packed ? 0 : rows_of.strides[0];
    row_stride = rows_of.strides[at];
    head_stride = rows_of.strides[at + 1];
  }

  /// Elements from a place to the next.
  std::int64_t unit(bool list_per_head) const {
    if (list_per_head) return head_stride;
    return rows > 1 ? row_stride : pages > 1 ? page_stride : std::max<std::int64_t>(row_stride, 1);
  }
};

struct Steps {
  std::int64_t page = 0;
  std::int64_t row = 1;

  bool operator==(const Steps&) const = default;
};

/// The steps of a tensor's pages and rows in places.
Result<Steps> steps_of(const std::string& name, const RowAxes& axes, bool list_per_head) {
  const std::int64_t unit = axes.unit(list_per_head);
  const std::int64_t pages = axes.pages > 1 ? axes.page_stride : 0;
  const std::int64_t rows = axes.rows > 1 ? axes.row_stride : unit;
  if (unit <= 0 || pages < 0 || rows < 0 || pages % unit != 0 || rows % unit != 0) {
    return unsupported(
        "{} has strides {} and {} from a page and a row to the next and {} between heads: the gpu engine takes "
        "multiples "
        "of a row's, and where each key head has lists, of a head's",
        name, axes.page_stride, axes.row_stride, axes.head_stride);
  }
  return Steps{pages / unit, rows / unit};
}

ConstTensorView as_places(const ConstTensorView& tensor, const RowAxes& axes, const Steps& steps, bool list_per_head) {
  const bool none = axes.pages == 0 || axes.rows == 0;
  const Checked last = Checked(std::max<std::int64_t>(axes.pages - 1, 0)) * steps.page +
                       Checked(std::max<std::int64_t>(axes.rows - 1, 0)) * steps.row;
  const std::int64_t heads = list_per_head ? 1 : axes.heads;
  const std::int64_t unit = axes.unit(list_per_head);
  ConstTensorView view = tensor;
  view.rank = 4;
  view.shape = {none ? 0 : (last + (list_per_head ? axes.heads : 1)).value(), 1, heads, axes.columns};
  view.strides = {unit, unit, axes.head_stride, 1};
  return view;
}

bool is_converted(const SparseSource& source, DType dtype) {
  const bool other_keys = source.k.dtype != dtype;
  const bool other_values = source.v.given() && source.v.dtype != dtype;
  return source.k_format.given() || source.v_format.given() || other_keys || other_values;
}

/// The format of rows, which is that of plain elements where none is given.
RowFormat format_of(const ConstTensorView& rows, const RowFormat& given) {
  return given.given() ? given : plain_rows(rows.dtype, rows.shape[static_cast<std::size_t>(rows.rank - 1)]);
}

/// Rows counted through pages or sequences, whatever their strides.
Result<SourcePlaces> converted_places(const SparseSource& source, const std::string& name) {
  SourcePlaces places;
  places.k = source.k;
  places.v = source.v;
  places.k_format = format_of(source.k, source.k_format);
  if (source.v.given()) places.v_format = format_of(source.v, source.v_format);
  for (const auto& [member, format] :
       {std::pair{"k_format", places.k_format}, std::pair{"v_format", places.v_format}}) {
    const Status status = check_listed_format(fmt::format("{}.{}", name, member), format);
    if (!status.ok()) return status;
  }
  const RowAxes axes(source.k);
  places.page_step = axes.rows;
  if (const std::int64_t rows = (Checked(axes.pages) * axes.rows).value(); rows > kMaxInt) {
    return unsupported("{}.k has {} rows: the gpu engine takes up to {}", name, rows, kMaxInt);
  }
  return places;
}

}  // namespace

Status check_elements(const SparseSource& source, const std::string& name, DType dtype) {
  for (const auto& [tensor, view] : {std::pair{"k", source.k}, std::pair{"v", source.v}}) {
    if (!view.given() || view.dtype == dtype) continue;
    return unsupported("{}.{} is {} and q is {}: the gpu engine takes one dtype; the cpu engine takes both", name,
                       tensor, name_of(view.dtype), name_of(dtype));
  }
  return {};
}

Result<SourcePlaces> source_places(const SparseForwardArguments& arguments, std::size_t index, std::int64_t lists) {
  const SparseSource& source = arguments.sources[index];
  const std::string name = fmt::format("sources[{}]", index);
  if (is_converted(source, arguments.q.dtype)) return converted_places(source, name);
  const bool list_per_head = lists > 1;
  const RowAxes k(source.k);
  const Result<Steps> steps = steps_of(name + ".k", k, list_per_head);
  if (!steps.ok()) return steps.status();
  SourcePlaces places;
  places.k = as_places(source.k, k, *steps, list_per_head);
  places.page_step = steps->page;
  places.row_step = steps->row;
  places.list_step = list_per_head ? 1 : 0;
  if (places.k.shape[0] > kMaxInt) {
    return unsupported("{}.k has {} rows: the gpu engine takes up to {}", name, places.k.shape[0], kMaxInt);
  }
  if (!source.v.given()) {
    places.v = places.k;
    places.v.shape[3] = arguments.o.shape[static_cast<std::size_t>(arguments.o.rank - 1)];
    return places;
  }
  const RowAxes v(source.v);
  const Result<Steps> v_steps = steps_of(name + ".v", v, list_per_head);
  if (!v_steps.ok()) return v_steps.status();
  if (!(*v_steps == *steps)) {
    return unsupported(
        "the rows of {0}.v lie apart otherwise than those of {0}.k: the gpu engine takes equal distances", name);
  }
  places.v = as_places(source.v, v, *steps, list_per_head);
  return places;
}

}  // namespace strobe::gpu
