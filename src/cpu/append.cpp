// SPDX-License-Identifier: Apache-2.0
// A task takes some rows of k_new and v_new, or of q. Rows that change neither their dtype nor their direction are
// copied, as many at once as lie side by side on both sides.
#include "cpu/append.h"

#include <algorithm>
#include <cstring>

#include "call/arithmetic.h"
#include "call/cache_rows.h"
#include "call/checked.h"
#include "cpu/kernels/append.h"
#include "cpu/passes.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

// Large enough to hide what it costs to hand out a task, small enough for a prompt of a few hundred rows to be shared.
constexpr std::int64_t kTaskBytes = std::int64_t{1} << 17;

std::int64_t rows_per_task(std::int64_t row_bytes) {
  return std::max<std::int64_t>(1, kTaskBytes / std::max<std::int64_t>(1, row_bytes));
}

/// Reads the angles of a position; one that is asked for again is at hand.
class AngleTable {
 public:
  explicit AngleTable(const AppendArguments& a) : cos_(a.cos), sin_(a.sin) {
    angles_.interleaved = a.interleaved;
    if (a.cos.given()) angles_.pairs = a.cos.shape[1];
  }

  bool given() const { return angles_.pairs > 0; }

  const Angles& at(std::int64_t position) {
    if (position == position_) return angles_;
    read(cos_, position, angles_.cos);
    read(sin_, position, angles_.sin);
    position_ = position;
    return angles_;
  }

  const Angles& none() const { return none_; }

 private:
  void read(const ConstTensorView& table, std::int64_t position, PaddedRow& to) const {
    const auto* const data = static_cast<const std::byte*>(table.data);
    const std::int64_t offset = position * table.strides[0] * static_cast<std::int64_t>(size_of(table.dtype));
    widen_row(table.dtype, data + offset, angles_.pairs, to.data());
  }

  const ConstTensorView& cos_;
  const ConstTensorView& sin_;
  std::int64_t position_ = -1;
  Angles angles_{};
  Angles none_{};
};

/// One of the tensors that rows come from, and one that they go to.
struct RowCopy {
  const SequenceRows& from;
  const TensorView& to;
  const ConstTensorView& descale;  // of heads, or not given
  const TensorView& row_descale;   // of rows, or not given

  std::int64_t heads() const { return to.shape[static_cast<std::size_t>(to.rank - 2)]; }
  std::int64_t columns() const { return to.shape[static_cast<std::size_t>(to.rank - 1)]; }
  std::int64_t to_head_stride() const { return to.strides[static_cast<std::size_t>(to.rank - 2)]; }
  std::int64_t row_bytes() const { return (Checked(heads()) * columns() * size_of(from.tensor.dtype)).value(); }

  const std::byte* source(std::int64_t row) const {
    const auto size = static_cast<std::int64_t>(size_of(from.tensor.dtype));
    return static_cast<const std::byte*>(from.tensor.data) + from.offset(row) * size;
  }
  std::byte* destination(std::int64_t offset) const {
    return static_cast<std::byte*>(to.data) + offset * static_cast<std::int64_t>(size_of(to.dtype));
  }

  /// A row of sequence b. `place`: of a cache.
  void convert(std::int64_t b, std::int64_t row, std::int64_t to_offset, const CachePlace& place,
               const Angles& angles) const {
    HeadRows rows{.from_dtype = from.tensor.dtype,
                  .to_dtype = to.dtype,
                  .from = source(row),
                  .to = destination(to_offset),
                  .from_stride = from.head_stride(),
                  .to_stride = to_head_stride(),
                  .heads = heads(),
                  .columns = columns(),
                  .scales = nullptr,
                  .row_scales = nullptr,
                  .scale_stride = 0};
    if (descale.given()) {
      rows.scales = static_cast<const float*>(descale.data) + (descale.shape[0] > 1 ? b * descale.strides[0] : 0);
      rows.scale_stride = descale.shape[1] > 1 ? descale.strides[1] : 0;
    }
    if (row_descale.given()) {
      const auto& strides = row_descale.strides;
      rows.row_scales = static_cast<float*>(row_descale.data) + place.entry * strides[0] + place.row * strides[2];
      rows.scale_stride = strides[1];
    }
    convert_heads(rows, angles);
  }

  /// Copies the heads of `count` rows, of which both sides lie `from_stride` and `to_stride` elements apart.
  void copy(std::int64_t row, std::int64_t to_offset, std::int64_t count, std::int64_t from_stride,
            std::int64_t to_stride) const {
    const auto size = static_cast<std::int64_t>(size_of(to.dtype));
    const std::byte* source_row = source(row);
    std::byte* destination_row = destination(to_offset);
    const bool whole_rows = heads() == 1 || (from.head_stride() == columns() && to_head_stride() == columns());
    const std::int64_t row_elements = heads() * columns();
    if (whole_rows && from_stride == row_elements && to_stride == row_elements) {
      std::memcpy(destination_row, source_row, static_cast<std::size_t>(count * row_elements * size));
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      if (whole_rows) {
        std::memcpy(destination_row, source_row, static_cast<std::size_t>(row_elements * size));
      } else {
        for (std::int64_t head = 0; head < heads(); ++head) {
          std::memcpy(destination_row + head * to_head_stride() * size, source_row + head * from.head_stride() * size,
                      static_cast<std::size_t>(columns() * size));
        }
      }
      source_row += from_stride * size;
      destination_row += to_stride * size;
    }
  }
};

/// Rows [first, last) of k_new or v_new to their places.
void append_rows(const AppendArguments& a, const RowCopy& copy, bool rotated, std::int64_t first, std::int64_t last) {
  const std::int64_t batch = a.cache_seqlens.shape[0];
  const CachePlaces cache{a};
  const RowPositions positions{a.positions, copy.from, cache};
  AngleTable table(a);
  rotated = rotated && table.given();
  const bool as_they_are = !rotated && copy.from.tensor.dtype == copy.to.dtype;
  const std::int64_t from_stride = copy.from.tensor.strides[static_cast<std::size_t>(copy.from.tensor.rank - 3)];
  for (std::int64_t row = first; row < last;) {
    const std::int64_t b = copy.from.sequence_of(row, batch);
    const std::int64_t begin = copy.from.first(b);
    const std::int64_t behind = int32_at(a.cache_seqlens, b) + row - begin;
    const CachePlace place = cache.at(b, behind);
    const std::int64_t count =
        std::min({begin + copy.from.count(b), last, row + cache.rows_per_entry() - place.row}) - row;
    const std::int64_t offset = place.entry * copy.to.strides[0] + place.row * copy.to.strides[1];
    if (as_they_are) {
      copy.copy(row, offset, count, from_stride, copy.to.strides[1]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        copy.convert(b, row + i, offset + i * copy.to.strides[1], {place.entry, place.row + i},
                     rotated ? table.at(positions.at(b, row + i)) : table.none());
      }
    }
    row += count;
  }
}

void rotate_queries(const AppendArguments& a, const RowCopy& copy, std::int64_t first, std::int64_t last) {
  const std::int64_t batch = a.cache_seqlens.shape[0];
  const CachePlaces cache{a};
  const RowPositions positions{a.positions_q, copy.from, cache, a.q_in_order};
  AngleTable table(a);
  const ConstTensorView to = copy.to;
  const SequenceRows rows_out{to, copy.from.cu_seqlens};
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t b = copy.from.sequence_of(row, batch);
    copy.convert(b, row, rows_out.offset(row), {}, table.at(positions.at(b, row)));
  }
}

}  // namespace

void append(const AppendArguments& a, const Execution& execution) {
  const ConstTensorView no_scales;
  const TensorView no_row_scales;
  const std::int64_t batch = a.cache_seqlens.shape[0];
  const SequenceRows keys{a.k_new, a.cu_seqlens_new};
  const SequenceRows values{a.v_new, a.cu_seqlens_new};
  const SequenceRows queries{a.q, a.cu_seqlens_q};
  const RowCopy k{keys, a.k_cache, a.k_descale, a.k_row_descale};
  const RowCopy v{values, a.v_cache, a.v_descale, a.v_row_descale};
  const RowCopy q{queries, a.q_out, no_scales, no_row_scales};
  const std::int64_t total = keys.total(batch);
  const std::int64_t total_q = a.q.given() ? queries.total(batch) : 0;
  const std::int64_t rows = rows_per_task(k.row_bytes() + v.row_bytes());
  const std::int64_t rows_q = a.q.given() ? rows_per_task(q.row_bytes()) : 1;
  const std::int64_t tasks = ceil_div(total, rows);
  const auto task = [&](std::int64_t index, int) {
    if (index >= tasks) {
      const std::int64_t first = (index - tasks) * rows_q;
      return rotate_queries(a, q, first, std::min(first + rows_q, total_q));
    }
    const std::int64_t first = index * rows;
    append_rows(a, k, true, first, std::min(first + rows, total));
    append_rows(a, v, false, first, std::min(first + rows, total));
  };
  for_each_task(tasks + ceil_div(total_q, rows_q), worker_count(execution.threads), execution.parallel_for, task);
}

}  // namespace strobe::cpu
