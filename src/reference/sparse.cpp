// SPDX-License-Identifier: Apache-2.0
#include "reference/sparse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/bound/parallel.h"
#include "reference/sparse_gather.h"
#include "reference/tensors.h"

namespace strobe::reference {
namespace {

template <class T>
T bytes_as(const std::vector<std::byte>& row, std::int64_t offset) {
  T value;
  std::memcpy(&value, row.data() + offset, sizeof(T));
  return value;
}

double float8_value(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

double element_value(const RowPart& part, std::int64_t column, const std::vector<std::byte>& row) {
  const std::int64_t at = part.offset;
  switch (part.element) {
    case RowElement::float32: return bytes_as<float>(row, at + 4 * column);
    case RowElement::bfloat16: return to_float(bytes_as<bfloat16>(row, at + 2 * column));
    case RowElement::float16: return to_float(bytes_as<float16>(row, at + 2 * column));
    case RowElement::float8_e4m3: return float8_value(bytes_as<std::uint8_t>(row, at + column));
    case RowElement::int8: return bytes_as<std::int8_t>(row, at + column);
    case RowElement::int4: {
      const int code = bytes_as<std::uint8_t>(row, at + column / 2) >> (column % 2 * 4) & 15;
      return code < 8 ? code : code - 16;
    }
    case RowElement::float4_e2m1: {
      const int code = bytes_as<std::uint8_t>(row, at + column / 2) >> (column % 2 * 4) & 15;
      const int exponent = code >> 1 & 3;
      const double magnitude = exponent == 0 ? 0.5 * (code & 1) : std::ldexp(2 + (code & 1), exponent - 2);
      return code < 8 ? magnitude : -magnitude;
    }
  }
  return 0.0;
}

double scale_value(const RowPart& part, std::int64_t group, const std::vector<std::byte>& row) {
  const std::int64_t at = part.scale_offset;
  switch (part.scale) {
    case RowScale::none: return 1.0;
    case RowScale::float32:
    case RowScale::float32_power_of_two: return bytes_as<float>(row, at + 4 * group);
    case RowScale::bfloat16: return to_float(bytes_as<bfloat16>(row, at + 2 * group));
    case RowScale::float8_e4m3: return float8_value(bytes_as<std::uint8_t>(row, at + group));
    case RowScale::float8_e8m0: {
      const auto bits = bytes_as<std::uint8_t>(row, at + group);
      return bits == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
    }
  }
  return 1.0;
}

/// The bytes of a row, the tail's last.
std::vector<std::byte> bytes_of_row(const ConstTensorView& cache, const RowFormat& format, const ListedRow& at,
                                    std::int64_t head) {
  const bool packed = cache.rank == 3;
  const auto* const page = static_cast<const std::byte*>(cache.data) + (packed ? 0 : at.page * cache.strides[0]);
  const std::int64_t body = format.row_bytes - format.tail_bytes;
  const std::int64_t heads = cache.shape[packed ? 1 : 2];
  std::vector<std::byte> row(static_cast<std::size_t>(format.row_bytes));
  if (format.tail_bytes == 0) {
    std::memcpy(row.data(), page + at.row * cache.strides[packed ? 0 : 1] + head * cache.strides[packed ? 1 : 2],
                row.size());
    return row;
  }
  const std::int64_t page_rows = cache.shape[packed ? 0 : 1] * heads;
  const std::int64_t number = at.row * heads + head;
  std::memcpy(row.data(), page + number * body, static_cast<std::size_t>(body));
  std::memcpy(row.data() + body, page + page_rows * body + number * format.tail_bytes,
              static_cast<std::size_t>(format.tail_bytes));
  return row;
}

/// The columns of a row of k or v.
std::vector<float> columns_of_row(const ConstTensorView& rows, const RowFormat& format, const ListedRow& at,
                                  std::int64_t head) {
  if (format.given()) return decode_row(format, bytes_of_row(rows, format, at, head));
  const std::int64_t row = rows.rank == 3 ? at.row : at.page * rows.shape[1] + at.row;
  const std::vector<double> exact = read_head(rows, row, 1, head);
  return {exact.begin(), exact.end()};
}

std::int64_t int32_of(const ConstTensorView& tensor, std::int64_t offset) {
  return static_cast<const std::int32_t*>(tensor.data)[offset];
}

/// Where a query is.
struct QueryPlace {
  std::int64_t sequence = 0, position = 0, count = 0;
};

QueryPlace place_of(const SparseForwardArguments& a, std::int64_t row) {
  if (a.q.rank == 4) return {row / a.q.shape[1], row % a.q.shape[1], a.q.shape[1]};
  if (!a.cu_seqlens_q.given()) return {0, row, a.q.shape[0]};
  std::int64_t b = 0;
  while (int32_of(a.cu_seqlens_q, (b + 1) * a.cu_seqlens_q.strides[0]) <= row) ++b;
  const std::int64_t first = int32_of(a.cu_seqlens_q, b * a.cu_seqlens_q.strides[0]);
  return {b, row - first, int32_of(a.cu_seqlens_q, (b + 1) * a.cu_seqlens_q.strides[0]) - first};
}

/// Offset of a query in a tensor that has q's leading axes.
std::int64_t offset_of(const ConstTensorView& tensor, bool packed, const QueryPlace& place, std::int64_t row) {
  return packed ? row * tensor.strides[0] : place.sequence * tensor.strides[0] + place.position * tensor.strides[1];
}

/// The first packed row and the keys of a sequence.
void sequence_of_keys(const SparseSource& s, std::int64_t sequence, std::int64_t& first, std::int64_t& keys) {
  first = 0;
  if (s.page_table.given()) {
    keys = s.page_table.shape[1] * s.k.shape[1];
  } else if (s.in_pool) {
    keys = s.k.shape[0] * s.k.shape[1];
  } else if (s.k.rank == 4) {
    keys = s.k.shape[1];
  } else if (s.cu_seqlens_k.given()) {
    first = int32_of(s.cu_seqlens_k, sequence * s.cu_seqlens_k.strides[0]);
    keys = int32_of(s.cu_seqlens_k, (sequence + 1) * s.cu_seqlens_k.strides[0]) - first;
  } else {
    keys = s.k.shape[0];
  }
  if (s.seqused_k.given()) keys = int32_of(s.seqused_k, sequence * s.seqused_k.strides[0]);
}

ListedRow row_of_key(const SparseSource& s, std::size_t index, std::int64_t sequence, std::int64_t first,
                     std::int64_t key) {
  if (s.k.rank == 3) return {index, 0, first + key};
  if (s.in_pool) return {index, key / s.k.shape[1], key % s.k.shape[1]};
  if (!s.page_table.given()) return {index, sequence, key};
  const std::int64_t entry = sequence * s.page_table.strides[0] + key / s.k.shape[1] * s.page_table.strides[1];
  return {index, int32_of(s.page_table, entry), key % s.k.shape[1]};
}

}  // namespace

std::vector<float> decode_row(const RowFormat& format, const std::vector<std::byte>& row) {
  std::vector<float> columns;
  for (std::int32_t p = 0; p < format.part_count; ++p) {
    const RowPart& part = format.parts[static_cast<std::size_t>(p)];
    for (std::int64_t c = 0; c < part.columns; ++c) {
      const double scale = scale_value(part, part.scale == RowScale::none ? 0 : c / part.scale_columns, row);
      columns.push_back(static_cast<float>(element_value(part, c, row) * scale));
    }
  }
  return columns;
}

std::vector<ListedRow> listed_rows(const SparseForwardArguments& a, std::int64_t row, std::int64_t head_kv) {
  const QueryPlace place = place_of(a, row);
  const bool packed = a.q.rank == 3;
  std::vector<ListedRow> rows;
  for (std::size_t i = 0; i < a.sources.size(); ++i) {
    const SparseSource& s = a.sources[i];
    if (!s.k.given()) continue;
    std::int64_t first = 0;
    std::int64_t keys = 0;
    sequence_of_keys(s, place.sequence, first, keys);
    const std::size_t last = s.indices.rank - 1;
    const std::int64_t head = s.indices.shape[last - 1] == 1 ? 0 : head_kv;
    const std::int64_t list = offset_of(s.indices, packed, place, row) + head * s.indices.strides[last - 1];
    const std::int64_t count = s.topk_length.given()
                                   ? int32_of(s.topk_length, offset_of(s.topk_length, packed, place, row))
                                   : s.indices.shape[last];
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t number = int32_of(s.indices, list + n);
      if (number == -1) continue;
      for (std::int64_t key = number * s.block_size; key < (number + 1) * s.block_size && key < keys; ++key) {
        const bool ahead = s.causal && key > place.position + keys - place.count;
        if (!ahead) rows.push_back(row_of_key(s, i, place.sequence, first, key));
      }
    }
  }
  return rows;
}

SparseExtents::SparseExtents(const SparseForwardArguments& a)
    : queries(a.q.rank == 3 ? a.q.shape[0] : a.q.shape[0] * a.q.shape[1]),
      heads_q(heads_of(a.q)),
      heads_kv(heads_of(a.sources[0].k)),
      rows_per_entry(reference::rows_per_entry(a.q)) {}

GatheredQuery::GatheredQuery(const SparseForwardArguments& a, std::int64_t row, std::int64_t head_kv)
    : rows(listed_rows(a, row, head_kv)),
      group(heads_of(a.q) / heads_of(a.sources[0].k)),
      head_dim(head_dim_of(a.q)),
      head_dim_v(head_dim_of(a.o)) {
  for (std::int64_t h = 0; h < group; ++h) {
    const std::int64_t head = head_kv * group + h;
    const std::vector<double> exact = read_head(a.q, row, 1, head);
    q.insert(q.end(), exact.begin(), exact.end());
    if (a.sink.given()) sink.push_back(static_cast<const float*>(a.sink.data)[head * a.sink.strides[0]]);
  }
  for (const ListedRow& at : rows) {
    const SparseSource& s = a.sources[at.source];
    const std::vector<float> key = columns_of_row(s.k, s.k_format, at, head_kv);
    const std::vector<float> value = s.v.given() ? columns_of_row(s.v, s.v_format, at, head_kv) : key;
    k.insert(k.end(), key.begin(), key.end());
    v.insert(v.end(), value.begin(), value.begin() + head_dim_v);
  }
}

SparseForwardResult sparse_forward(const SparseForwardArguments& a, const SparseOptions& options,
                                   const ArithmeticModel& model, int threads) {
  const SparseExtents extents(a);
  const std::int64_t head_dim_v = head_dim_of(a.o);
  SparseForwardResult result{zeros(extents.queries * extents.heads_q * head_dim_v),
                             zeros(extents.queries * extents.heads_q)};
  run_tasks(extents.queries * extents.heads_kv, threads, [&](std::int64_t task) {
    const std::int64_t row = task / extents.heads_kv;
    const std::int64_t head_kv = task % extents.heads_kv;
    const GatheredQuery query(a, row, head_kv);
    ForwardArguments dense;
    dense.q = tensor(query.q.data(), {1, 1, query.group, query.head_dim});
    dense.k = tensor(query.k.data(), {1, query.keys(), 1, query.head_dim});
    dense.v = tensor(query.v.data(), {1, query.keys(), 1, head_dim_v});
    dense.o = tensor(static_cast<float*>(nullptr), {1, 1, query.group, head_dim_v});
    dense.o.dtype = a.o.dtype;
    if (a.sink.given()) dense.modifiers.sink = tensor(query.sink.data(), {query.group});
    AttentionOptions used;
    used.scale = options.scale;
    used.softcap = options.softcap;
    const ForwardResult one = forward(dense, used, model, 1);
    for (std::int64_t h = 0; h < query.group; ++h) {
      const std::int64_t head = head_kv * query.group + h;
      const std::int64_t to = (row * extents.heads_q + head) * head_dim_v;
      std::copy_n(one.o.value.begin() + h * head_dim_v, head_dim_v, result.o.value.begin() + to);
      std::copy_n(one.o.bound.begin() + h * head_dim_v, head_dim_v, result.o.bound.begin() + to);
      const std::int64_t index = lse_index(row, head, extents.heads_q, extents.rows_per_entry);
      result.lse.value[index] = one.lse.value[h];
      result.lse.bound[index] = one.lse.bound[h];
    }
  });
  return result;
}

}  // namespace strobe::reference
