// SPDX-License-Identifier: Apache-2.0
// Row formats as kernels are compiled for them.
#pragma once

#include <algorithm>

#include "call/checked.h"
#include "call/row_format.h"
#include "kernels/sequence/stored_cache.h"

namespace strobe::gpu {

static_assert(static_cast<int>(StoredElement::float4_e2m1) == static_cast<int>(RowElement::float4_e2m1));
static_assert(static_cast<int>(StoredScale::float8_e4m3) == static_cast<int>(RowScale::float8_e4m3));
static_assert(kMostStoredParts == kMaxRowParts);

constexpr StoredPart stored_part(const RowPart& part) {
  return {.element = static_cast<StoredElement>(part.element),
          .columns = part.columns,
          .offset = part.offset,
          .scale = static_cast<StoredScale>(part.scale),
          .scale_columns = part.scale_columns,
          .scale_offset = part.scale_offset};
}

constexpr StoredFormat stored_format(const RowFormat& format) {
  return {.first = stored_part(format.parts[0]),
          .second = stored_part(format.parts[1]),
          .third = stored_part(format.parts[2]),
          .fourth = stored_part(format.parts[3]),
          .part_count = format.part_count,
          .row_bytes = format.row_bytes,
          .tail_bytes = format.tail_bytes,
          .alignment = format.alignment};
}

/// Rows of a cache in 8 bits, each of which has one scale, in another tensor.
constexpr RowFormat rows_of_cache(DType stored, std::int32_t columns) {
  const RowElement element = stored == DType::int8 ? RowElement::int8 : RowElement::float8_e4m3;
  return {.parts = {RowPart{.element = element, .columns = columns}},
          .part_count = 1,
          .row_bytes = columns,
          .alignment = 8};
}

constexpr StoredFormat with_scales_apart(StoredFormat format) {
  format.first.scale = StoredScale::float32;
  format.first.scale_columns = format.first.columns;
  format.first.scale_offset = kScaleApart;
  return format;
}

/// Of a cache, or of plain rows.
template <class Pointer>
auto stored_cache(const BasicTensorView<Pointer>& cache, const RowFormat& format) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, const void*>, const unsigned char, unsigned char>;
  const RowDistances distances(cache, format);
  return StoredCacheOf<Byte>{
      .rows = static_cast<Byte*>(cache.data),
      .page_stride = distances.page,
      .row_stride = distances.row,
      .head_stride = distances.head,
      .tails = distances.tails,
      .by_page_rows = Divisor::of(Checked(std::max<std::int64_t>(distances.rows, 1)).value<int>()),
      .heads = static_cast<int>(cache.shape[static_cast<std::size_t>(cache.rank - 2)])};
}

}  // namespace strobe::gpu
