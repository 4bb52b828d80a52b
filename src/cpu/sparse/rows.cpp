// SPDX-License-Identifier: Apache-2.0
// A task takes some rows of a page.
#include "cpu/sparse/rows.h"

#include <array>

#include "call/cache_rows.h"
#include "call/checked.h"
#include "cpu/merged_rows.h"
#include "cpu/passes.h"
#include "cpu/sparse/kernels.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

// A vector's length beyond the widest row.
using WideRow = std::array<float, kMaxRowColumns + 64>;

/// visit(page, row, head) of every row of [num_pages, page_size, heads_kv, ..].
template <class Visit>
void for_each_cache_row(const ConstTensorView& cache, const Execution& execution, const Visit& visit) {
  constexpr std::int64_t kRowsPerTask = 64;
  const std::int64_t page_rows = cache.shape[1];
  const std::int64_t chunks = ceil_div(page_rows, kRowsPerTask);
  const auto task = [&](std::int64_t index, int) {
    const std::int64_t first = index % chunks * kRowsPerTask;
    for (std::int64_t row = first; row < std::min(first + kRowsPerTask, page_rows); ++row) {
      for (std::int64_t head = 0; head < cache.shape[2]; ++head) visit(index / chunks, row, head);
    }
  };
  for_each_task((Checked(cache.shape[0]) * chunks).value(), worker_count(execution.threads), execution.parallel_for,
                task);
}

template <class T>
void narrow_columns(const float* from, std::int64_t count, std::byte* to) {
  for (std::int64_t c = 0; c < count; ++c) reinterpret_cast<T*>(to)[c] = from_float<T>(from[c]);
}

void narrow_row(const float* from, std::int64_t count, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::float16: return narrow_columns<float16>(from, count, to);
    case DType::bfloat16: return narrow_columns<bfloat16>(from, count, to);
    default: return narrow_columns<float>(from, count, to);
  }
}

template <class Pointer>
auto* element_at(const BasicTensorView<Pointer>& rows, std::int64_t page, std::int64_t row, std::int64_t head) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, const void*>, const std::byte, std::byte>;
  const std::int64_t offset = page * rows.strides[0] + row * rows.strides[1] + head * rows.strides[2];
  return static_cast<Byte*>(rows.data) + offset * static_cast<std::int64_t>(size_of(rows.dtype));
}

}  // namespace

void widen_columns(DType dtype, const std::byte* from, std::int64_t count, float* to) {
  decode_row(plain_rows(dtype, count), {from, nullptr}, to);
}

void encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                 const Execution& execution) {
  const FormattedRows to(cache, format);
  for_each_cache_row(cache, execution, [&](std::int64_t page, std::int64_t row, std::int64_t head) {
    WideRow columns;
    widen_columns(rows.dtype, element_at(rows, page, row, head), format.columns(), columns.data());
    encode_row(columns.data(), format, to.at(page, row, head));
  });
}

void decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                 const Execution& execution) {
  const FormattedRows from(cache, format);
  for_each_cache_row(cache, execution, [&](std::int64_t page, std::int64_t row, std::int64_t head) {
    WideRow columns;
    decode_row(format, from.at(page, row, head), columns.data());
    narrow_row(columns.data(), format.columns(), rows.dtype, element_at(rows, page, row, head));
  });
}

void append_rows(const AppendRowsArguments& a, const RowFormat& format, const Execution& execution) {
  constexpr std::int64_t kRowsPerTask = 16;
  const AppendArguments as_append = to_append(a);
  const CachePlaces places{as_append};
  const SequenceRows rows{as_append.k_new, as_append.cu_seqlens_new};
  const FormattedRows cache(a.cache, format);
  const std::int64_t batch = a.cache_seqlens.shape[0];
  const std::int64_t total = rows.total(batch);
  const auto task = [&](std::int64_t index, int) {
    for (std::int64_t row = index * kRowsPerTask; row < std::min((index + 1) * kRowsPerTask, total); ++row) {
      const std::int64_t b = rows.sequence_of(row, batch);
      const CachePlace to = places.at(b, int32_at(a.cache_seqlens, b) + row - rows.first(b));
      for (std::int64_t head = 0; head < a.cache.shape[2]; ++head) {
        const std::int64_t offset = rows.offset(row) + head * rows.head_stride();
        const auto* const from =
            static_cast<const std::byte*>(a.rows.data) + offset * static_cast<std::int64_t>(size_of(a.rows.dtype));
        WideRow columns;
        widen_columns(a.rows.dtype, from, format.columns(), columns.data());
        encode_row(columns.data(), format, cache.at(to.entry, to.row, head));
      }
    }
  };
  for_each_task(ceil_div(total, kRowsPerTask), worker_count(execution.threads), execution.parallel_for, task);
}

}  // namespace strobe::cpu
