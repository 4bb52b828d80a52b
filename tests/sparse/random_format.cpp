// SPDX-License-Identifier: Apache-2.0
#include "random_format.h"

#include <algorithm>
#include <vector>

#include "call/row_format.h"

namespace strobe::test {
namespace {

constexpr std::int32_t round_up(std::int32_t bytes, std::int32_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Elements and scales of a part of so many columns.
RowPart random_part(Random& random, std::int32_t columns, std::int32_t unit) {
  RowPart part{.columns = columns};
  part.element = random.one_of({RowElement::float32, RowElement::bfloat16, RowElement::float16, RowElement::float8_e4m3,
                                RowElement::float8_e4m3, RowElement::int8, RowElement::int4, RowElement::float4_e2m1,
                                RowElement::float4_e2m1});
  if (columns % 2 != 0 && bits_of(part.element) == 4) part.element = RowElement::int8;
  if (bits_of(part.element) > 8) return part;
  if (part.element == RowElement::float8_e4m3 && random.chance(0.2)) return part;
  part.scale = random.one_of({RowScale::float32, RowScale::bfloat16, RowScale::float8_e8m0,
                              RowScale::float32_power_of_two, RowScale::float8_e4m3});
  const auto groups = static_cast<std::int32_t>(random.one_of({1, 2, 4, 8, 16, 1000}));
  part.scale_columns = std::min(groups * unit, columns);
  return part;
}

/// Something that a row holds, and where its offset is said.
struct Placed {
  std::int32_t* offset;
  std::int32_t bytes;
  std::int32_t alignment;
};

/// Places pieces one after another from `begin` on, sometimes with padding between; where the last one ends.
std::int32_t place(Random& random, const std::vector<Placed>& pieces, std::int32_t begin, std::int32_t section) {
  std::int32_t at = begin;
  for (const Placed& piece : pieces) {
    if (random.chance(0.2)) at += static_cast<std::int32_t>(random.integer(1, 9));
    at = section + round_up(at - section, piece.alignment);
    *piece.offset = at;
    at += piece.bytes;
  }
  return at;
}

}  // namespace

RowFormat random_format(Random& random, std::int32_t columns, std::int32_t head_dim_v, std::int32_t unit) {
  RowFormat format{.head_dim_v = head_dim_v};
  std::int32_t left = columns;
  while (left > 0) {
    const bool last = format.part_count + 1 == kMaxRowParts || left <= unit || random.chance(0.4);
    const std::int32_t own =
        last ? left : static_cast<std::int32_t>(random.integer(1, std::max(1, left / unit - 1))) * unit;
    format.parts[static_cast<std::size_t>(format.part_count++)] = random_part(random, own, unit);
    left -= own;
  }
  std::vector<Placed> body;
  std::vector<Placed> tail;
  std::int32_t alignment = 1;
  for (std::int32_t i = 0; i < format.part_count; ++i) {
    RowPart& part = format.parts[static_cast<std::size_t>(i)];
    const auto element = static_cast<std::int32_t>(std::max<std::int64_t>(1, bits_of(part.element) / 8));
    const auto scale = static_cast<std::int32_t>(std::max<std::int64_t>(1, bytes_of(part.scale)));
    alignment = std::max({alignment, element, scale});
    body.push_back({&part.offset, static_cast<std::int32_t>(element_bytes(part)), element});
    if (part.scale == RowScale::none) continue;
    std::vector<Placed>& side = random.chance(0.4) ? tail : body;
    side.push_back({&part.scale_offset, static_cast<std::int32_t>(groups_of(part) * bytes_of(part.scale)), scale});
  }
  for (std::size_t i = body.size() - 1; i > 0; --i) {
    std::swap(body[i], body[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i)))]);
  }
  format.alignment = std::max(alignment, static_cast<std::int32_t>(random.one_of({1, 4, 16, 32})));
  const std::int32_t end = round_up(place(random, body, 0, 0), format.alignment);
  format.row_bytes = end;
  if (!tail.empty()) {
    format.tail_bytes = round_up(place(random, tail, end, end) - end, alignment);
    format.row_bytes += format.tail_bytes;
  }
  return format;
}

}  // namespace strobe::test
