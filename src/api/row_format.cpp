// SPDX-License-Identifier: Apache-2.0
#include "api/row_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "api/choose_engine.h"
#include "api/guarded.h"
#include "call/row_format.h"

namespace strobe {
namespace {

using api::invalid;
using api::NamedTensor;

/// Bytes [begin, end) of a row that something takes.
struct Taken {
  std::int64_t begin, end;
  std::string what;
};

Status check_offset(const std::string& what, std::int64_t offset, std::int64_t bytes, std::int64_t alignment,
                    const RowFormat& format, std::vector<Taken>& taken) {
  if (offset < 0 || offset + bytes > format.row_bytes) {
    return invalid("{} take bytes {} to {} of a row of {}", what, offset, offset + bytes, format.row_bytes);
  }
  const std::int64_t body = format.row_bytes - format.tail_bytes;
  if (offset < body && offset + bytes > body) {
    return invalid("{} take bytes {} to {}, and the row's tail begins at {}: what a part has must be on one side of it",
                   what, offset, offset + bytes, body);
  }
  if ((offset < body ? offset : offset - body) % alignment != 0) {
    return invalid("{} begin at byte {}: it must be a multiple of their {} bytes", what, offset, alignment);
  }
  for (const Taken& other : taken) {
    if (offset < other.end && other.begin < offset + bytes) {
      return invalid("{} take bytes {} to {} and {} {} to {}: they must not overlap", what, offset, offset + bytes,
                     other.what, other.begin, other.end);
    }
  }
  taken.push_back({offset, offset + bytes, what});
  return {};
}

Status check_part(const RowPart& part, std::size_t index, const RowFormat& format, std::vector<Taken>& taken) {
  if (!exists(part.element) || !exists(part.scale)) {
    return invalid("parts[{}] has element {} and scale {}: there are no such numbers of RowElement or RowScale", index,
                   static_cast<int>(part.element), static_cast<int>(part.scale));
  }
  if (part.columns < 1 || part.columns > kMaxRowColumns) {
    return invalid("parts[{}] has {} columns: it must have from 1 to {}", index, part.columns, kMaxRowColumns);
  }
  const std::int64_t bits = bits_of(part.element);
  if (bits == 4 && part.columns % 2 != 0) {
    return invalid("parts[{}] has {} columns of {}: it must have an even number, two to a byte", index, part.columns,
                   name_of(part.element));
  }
  const bool needs_scale = part.element == RowElement::int8 || bits == 4;
  if (needs_scale && part.scale == RowScale::none) {
    return invalid("parts[{}] is {} without scales: int8, int4 and float4_e2m1 need them", index,
                   name_of(part.element));
  }
  if (bits > 8 && part.scale != RowScale::none) {
    return invalid("parts[{}] is {} with scales: elements of 16 and 32 bits have none", index, name_of(part.element));
  }
  const std::int64_t element = std::max<std::int64_t>(1, bits / 8);
  Status status = check_offset(fmt::format("the columns of parts[{}]", index), part.offset, element_bytes(part),
                               element, format, taken);
  if (!status.ok() || part.scale == RowScale::none) return status;
  if (part.scale_columns < 1 || part.scale_columns > part.columns) {
    return invalid("parts[{}].scale_columns is {}: it must be from 1 to the part's columns, which are {}", index,
                   part.scale_columns, part.columns);
  }
  return check_offset(fmt::format("the scales of parts[{}]", index), part.scale_offset,
                      groups_of(part) * bytes_of(part.scale), bytes_of(part.scale), format, taken);
}

/// What rows' addresses must be multiples of for the elements of the body.
std::int64_t needed_alignment(const RowFormat& format) {
  std::int64_t largest = 1;
  for (const RowPart& part : parts_of(format)) {
    largest = std::max({largest, bits_of(part.element) / 8, bytes_of(part.scale)});
  }
  return largest;
}

Status check_sizes(const RowFormat& format) {
  if (format.part_count < 1 || format.part_count > kMaxRowParts) {
    return invalid("part_count is {}: it must be from 1 to {}", format.part_count, kMaxRowParts);
  }
  if (format.row_bytes < 1 || format.row_bytes > 4 * kMaxRowColumns + 1024) {
    return invalid("row_bytes is {}: it must be from 1 to {}", format.row_bytes, 4 * kMaxRowColumns + 1024);
  }
  if (format.tail_bytes < 0 || format.tail_bytes >= format.row_bytes) {
    return invalid("tail_bytes is {}: it must be 0 or more and less than row_bytes, which is {}", format.tail_bytes,
                   format.row_bytes);
  }
  if (format.alignment < 1 || format.alignment > 256 ||
      !std::has_single_bit(static_cast<std::uint32_t>(format.alignment))) {
    return invalid("alignment is {}: it must be a power of 2 from 1 to 256", format.alignment);
  }
  const std::int64_t body = format.row_bytes - format.tail_bytes;
  if (body % format.alignment != 0) {
    return invalid("rows of {} bytes follow one another: it must be a multiple of the alignment, which is {}", body,
                   format.alignment);
  }
  return {};
}

Status check_fields(const RowFormat& format) {
  if (Status status = check_sizes(format); !status.ok()) return status;
  std::vector<Taken> taken;
  std::size_t index = 0;
  for (const RowPart& part : parts_of(format)) {
    if (Status status = check_part(part, index++, format, taken); !status.ok()) return status;
  }
  const std::int64_t alignment = needed_alignment(format);
  if (format.alignment % alignment != 0) {
    return invalid("alignment is {}: the format's longest element or scale has {} bytes", format.alignment, alignment);
  }
  if (format.tail_bytes % alignment != 0) {
    return invalid("tail_bytes is {}: it must be a multiple of the {} bytes of the format's longest element or scale",
                   format.tail_bytes, alignment);
  }
  if (format.columns() > kMaxRowColumns) {
    return invalid("the parts have {} columns: a row has from 1 to {}", format.columns(), kMaxRowColumns);
  }
  if (format.head_dim_v < 0 || format.head_dim_v > format.columns()) {
    return invalid("head_dim_v is {}: it must be from 0 to the columns of the row, which are {}", format.head_dim_v,
                   format.columns());
  }
  return {};
}

constexpr std::string_view kRows = "[num_pages, page_size, heads_kv, columns]";
constexpr std::string_view kCache = "[num_pages, page_size, heads_kv, row_bytes]";

Status check_float_rows(const NamedTensor& rows, const ConstTensorView& cache, const RowFormat& format) {
  const DType dtype = rows.view.dtype;
  if (dtype != DType::float32 && dtype != DType::float16 && dtype != DType::bfloat16) {
    return invalid("{} is {}: it must be float32, float16 or bfloat16", rows.name, name_of(dtype));
  }
  const auto& s = cache.shape;
  return api::check_shape(rows, {s[0], s[1], s[2], format.columns()}, kRows);
}

/// Of both directions; `output` is what is written.
Result<const engine::Implementation*> check_call(const NamedTensor& rows, const NamedTensor& cache,
                                                 const RowFormat& format, bool encodes, const Execution& execution) {
  const NamedTensor& output = encodes ? cache : rows;
  Status status = api::first_failure(
      [&] { return api::check_named_format("format", format); }, [&] { return api::check_layout(cache, 4, kCache); },
      [&] { return api::check_layout(rows, 4, kRows); }, [&] { return api::check_formatted_cache(cache, format); },
      [&] { return check_float_rows(rows, cache.view, format); },
      [&]() -> Status {
        if (rows.view.device == cache.view.device) return {};
        return invalid("rows and cache must be on one device");
      },
      [&] { return api::check_distinct_elements(output); });
  Result<const engine::Implementation*> chosen = api::engine_for(status, cache.view.device, execution);
  if (!chosen.ok()) return chosen;
  status = api::first_failure([&] { return api::check_data(rows); }, [&] { return api::check_data(cache); },
                              [&] { return api::check_apart(output, encodes ? rows : cache); });
  if (!status.ok()) return status;
  return chosen;
}

}  // namespace

namespace api {

Status check_named_format(std::string_view name, const RowFormat& format) {
  const Status status = check_row_format(format);
  return status.ok() ? Status() : Status(status.code(), fmt::format("{}: {}", name, status.message()));
}

Status check_formatted_cache(const NamedTensor& cache, const RowFormat& format) {
  const ConstTensorView& view = cache.view;
  if (Status status = check_dtype(cache, DType::uint8, ": its rows have a format"); !status.ok()) return status;
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.shape[last] != format.row_bytes) {
    return invalid("{} has rows of {} bytes: the format has {}", cache.name, view.shape[last], format.row_bytes);
  }
  if (empty(view)) return {};
  for (std::size_t axis = 0; axis < last; ++axis) {
    const bool in_page = axis + 3 > last;  // rows and heads
    if (format.tail_bytes > 0 && in_page) {
      const std::int64_t wanted = axis + 1 == last ? view.shape[last] : view.shape[last] * view.shape[last - 1];
      if (view.shape[axis] > 1 && view.strides[axis] != wanted) {
        return invalid("{} has stride {} on axis {}: with tails rows must follow one another, {} bytes apart",
                       cache.name, view.strides[axis], axis, wanted);
      }
    } else if (view.shape[axis] > 1 && view.strides[axis] % format.alignment != 0) {
      return invalid("{} has stride {} on axis {}: it must be a multiple of the format's alignment, which is {}",
                     cache.name, view.strides[axis], axis, format.alignment);
    }
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(format.alignment) != 0) {
    return invalid("{}'s pointer must be aligned to {} bytes, as the format's rows are", cache.name, format.alignment);
  }
  return {};
}

}  // namespace api

Status check_row_format(const RowFormat& format) {
  return api::guarded([&] { return check_fields(format); });
}

std::string describe_row_format(const RowFormat& format) {
  if (!check_row_format(format).ok()) return "not a valid row format";
  std::string text = fmt::format("{} columns in {} bytes: ", format.columns(), format.row_bytes);
  for (const RowPart& part : parts_of(format)) {
    if (&part != format.parts.data()) text += "; ";
    text += fmt::format("{} {} at {}", part.columns, name_of(part.element), part.offset);
    if (part.scale == RowScale::none) continue;
    text += fmt::format(", {} scales of {} at {}", name_of(part.scale), part.scale_columns, part.scale_offset);
  }
  if (format.tail_bytes > 0) text += fmt::format("; the last {} bytes behind the page's rows", format.tail_bytes);
  if (format.head_dim_v > 0) text += fmt::format("; V is the first {} columns", format.head_dim_v);
  return text;
}

Status encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                   const Execution& execution) {
  return api::guarded([&]() -> Status {
    const auto engine = check_call({"rows", rows}, {"cache", cache}, format, true, execution);
    return engine.ok() ? (*engine)->encode_rows(rows, cache, format, execution) : engine.status();
  });
}

Status decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                   const Execution& execution) {
  return api::guarded([&]() -> Status {
    const auto engine = check_call({"rows", rows}, {"cache", cache}, format, false, execution);
    return engine.ok() ? (*engine)->decode_rows(cache, rows, format, execution) : engine.status();
  });
}

}  // namespace strobe
