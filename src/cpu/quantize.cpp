// SPDX-License-Identifier: Apache-2.0
// Every head of a tensor goes through the same steps: rows are centred and rotated in float32, their largest magnitude
// becomes the scale of their unit, and a second walk over the same rows rounds them.
#include "cpu/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "call/checked.h"
#include "call/eight_bit.h"
#include "call/limits.h"
#include "call/sequences.h"
#include "cpu/passes.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

constexpr std::size_t kMostColumns = kMaxHeadDim;
using Row = std::array<float, kMostColumns>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Queries or keys.
struct HostSide : QuantizedSide {
  HostSide(const QuantizedSide& side, const ConstTensorView& lengths) : QuantizedSide(side), cu_seqlens(lengths) {}

  const ConstTensorView& cu_seqlens;

  SequenceSide sequence(std::int64_t index) const { return sequence_side(index, seqlen, cu_seqlens, {}, {}); }
  /// Rows of a packed tensor that belong to a sequence.
  std::int64_t used() const { return int32_at(cu_seqlens, batch); }
};

/// A tensor's stride: of its last axes but `from_last` - 1.
template <class Pointer>
std::int64_t stride(const BasicTensorView<Pointer>& tensor, int from_last) {
  return tensor.strides[static_cast<std::size_t>(tensor.rank - from_last)];
}

/// Rows of one head of a sequence.
class Head {
 public:
  Head(const ConstTensorView& tensor, const SequenceSide& sequence, std::int64_t head)
      : tensor_(tensor),
        start_(sequence_offset(tensor, sequence) + head * stride(tensor, 2)),
        rows_(sequence.length),
        columns_(tensor.shape[static_cast<std::size_t>(tensor.rank - 1)]) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

  /// Widened to float32. False if an element is not finite.
  bool read(std::int64_t row, Row& to) const {
    const std::int64_t at = start_ + row * stride(tensor_, 3);
    switch (tensor_.dtype) {
      case DType::float16: return read_as<float16>(at, to);
      case DType::bfloat16: return read_as<bfloat16>(at, to);
      default: return read_as<float>(at, to);
    }
  }

 private:
  template <class T>
  bool read_as(std::int64_t at, Row& to) const {
    const T* from = static_cast<const T*>(tensor_.data) + at;
    bool finite = true;
    for (std::int64_t c = 0; c < columns(); ++c) {
      to[c] = to_float(from[c]);
      finite = finite && std::isfinite(to[c]);
    }
    return finite;
  }

  const ConstTensorView& tensor_;
  std::int64_t start_, rows_, columns_;
};

/// What happens to the rows of a tensor before they are rounded.
struct Transform {
  bool rotated = false;
  std::uint64_t seed = 0;
  const float* mean = nullptr;  // with the signs of the rotation; null: none

  void apply(Row& row, std::int64_t columns) const {
    if (rotated) flip_signs(seed, row.data(), columns);
    for (std::int64_t c = 0; mean != nullptr && c < columns; ++c) row[c] -= mean[c];
    if (rotated) hadamard_transform(row.data(), columns);
  }
};

/// Sums of columns, in the order that call/eight_bit.h prescribes.
class ColumnSums {
 public:
  explicit ColumnSums(std::int64_t columns) : columns_(columns) {}

  /// Adds term `index`; those that are left out count as zeros.
  template <class T>
  void add(std::int64_t index, const T* term) {
    auto& sums = phases_[static_cast<std::size_t>(index % kMeanPhases)];
    for (std::int64_t c = 0; c < columns_; ++c) sums[c] += static_cast<double>(term[c]);
  }

  std::array<double, kMostColumns> total() const {
    std::array<double, kMostColumns> sums = phases_[0];
    for (std::size_t phase = 1; phase < phases_.size(); ++phase) {
      for (std::int64_t c = 0; c < columns_; ++c) sums[c] += phases_[phase][c];
    }
    return sums;
  }

 private:
  std::int64_t columns_;
  std::array<std::array<double, kMostColumns>, kMeanPhases> phases_{};
};

/// The mean of the keys that are finite.
void write_mean(const Head& keys, float* mean) {
  const std::int64_t columns = keys.columns();
  ColumnSums all(columns);
  std::int64_t count = 0;
  Row row;
  for (std::int64_t first = 0; first < keys.rows(); first += kMeanRows) {
    ColumnSums block(columns);
    for (std::int64_t i = first; i < std::min(first + kMeanRows, keys.rows()); ++i) {
      if (!keys.read(i, row)) continue;
      ++count;
      block.add(i, row.data());
    }
    all.add(first / kMeanRows, block.total().data());
  }
  const std::array<double, kMostColumns> sum = all.total();
  for (std::int64_t c = 0; c < columns; ++c) {
    mean[c] = count == 0 ? 0.0F : static_cast<float>(sum[c] / static_cast<double>(count));
  }
}

/// What value / scale is in 8 bits. The product is rounded once: GPUs fuse it with the rounding to an integer.
std::uint8_t to_element(DType element, float value, float inverse_scale) {
  if (element == DType::float8_e4m3) return to_float8_e4m3(value * inverse_scale).bits;
  const double exact = static_cast<double>(value) * static_cast<double>(inverse_scale);
  constexpr double kLargest = kLargestInt8;
  return static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(std::nearbyint(exact), -kLargest, kLargest)));
}

/// One of the three tensors: how it is read, and where its elements and scales go.
struct Quantisation {
  const HostSide& side;
  const ConstTensorView& from;
  const TensorView& to;
  const TensorView& scales;
  ScaleUnit unit = ScaleUnit::row;
  const QuantizeOptions& options;
  bool transposed = false;                     // V
  const ConstTensorView* companion = nullptr;  // V with scales by rows: of keys that are not finite, too
  bool forgives = false;                       // K, where such a companion tells

  std::int64_t rows_per_scale() const { return strobe::rows_per_scale(unit, side.seqlen); }

  float& scale(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    const bool shared = unit == ScaleUnit::tensor;
    return static_cast<float*>(
        scales.data)[(shared ? 0 : batch * scales.strides[0] + head * scales.strides[1]) + row / rows_per_scale()];
  }

  /// Transforms row `row`; false if it is not to be had.
  bool read(const Head& head, const Transform& transform, std::int64_t row, Row& to_row) const {
    if (!head.read(row, to_row)) return false;
    transform.apply(to_row, head.columns());
    return true;
  }
};

/// Columns of V.
struct ColumnRange {
  std::int64_t first, end;
};

/// Of a sequence: those of its keys and the padding up to the next one's.
ColumnRange columns_of(const HostSide& side, const SequenceSide& sequence, std::int64_t index) {
  if (!side.packed) return {0, side.value_columns()};
  return {packed_value_start(sequence.begin, index), packed_value_start(sequence.begin + sequence.length, index + 1)};
}

/// Where a head of V begins, of a batch entry or of all sequences.
std::uint8_t* values_of(const Quantisation& q, std::int64_t batch, std::int64_t head) {
  return static_cast<std::uint8_t*>(q.to.data) + (q.side.packed ? 0 : batch * q.to.strides[0]) + head * stride(q.to, 3);
}

void clear_columns(const Quantisation& q, std::uint8_t* of_head, std::int64_t columns, const ColumnRange& range) {
  if (range.first == range.end) return;  // then there may be no memory
  for (std::int64_t c = 0; c < columns; ++c) {
    std::memset(of_head + c * stride(q.to, 2) + range.first, 0, static_cast<std::size_t>(range.end - range.first));
  }
}

/// What belongs to no sequence of a packed tensor.
void clear_behind(const Quantisation& q) {
  if (!q.side.packed) return;
  const std::int64_t columns = q.from.shape[2];
  for (std::int64_t head = 0; head < q.side.heads; ++head) {
    if (q.transposed) {
      const ColumnRange range{packed_value_start(q.side.used(), q.side.batch), q.side.value_columns()};
      clear_columns(q, values_of(q, 0, head), columns, range);
      continue;
    }
    auto* const of_head = static_cast<std::uint8_t*>(q.to.data) + head * q.to.strides[1];
    for (std::int64_t row = q.side.used(); row < q.side.total; ++row) {
      std::memset(of_head + row * q.to.strides[0], 0, static_cast<std::size_t>(columns));
    }
  }
}

/// The largest magnitudes of one head's units, in `largest`; NaN where a row that counts is not finite.
void find_largest(const Quantisation& q, std::int64_t batch, std::int64_t head, const Transform& transform,
                  std::span<float> largest) {
  const SequenceSide sequence = q.side.sequence(batch);
  const Head rows(q.from, sequence, head);
  const std::int64_t step = q.rows_per_scale();
  Row row;
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    float& unit = largest[static_cast<std::size_t>(i / step)];
    bool finite = q.read(rows, transform, i, row);
    float top = 0.0F;
    for (std::int64_t c = 0; finite && c < rows.columns(); ++c) top = std::max(top, std::fabs(row[c]));
    if (q.companion != nullptr) finite = Head(*q.companion, sequence, head).read(i, row) && finite;
    if (!finite) top = q.forgives ? 0.0F : kNaN;
    if (!(top <= unit)) unit = std::isnan(unit) ? unit : top;
  }
}

void write_rows(const Quantisation& q, std::int64_t batch, std::int64_t head, const Transform& transform) {
  const SequenceSide sequence = q.side.sequence(batch);
  const Head rows(q.from, sequence, head);
  std::uint8_t* data = nullptr;
  if (q.transposed) {
    const ColumnRange range = columns_of(q.side, sequence, batch);
    data = values_of(q, batch, head);
    clear_columns(q, data, rows.columns(), range);
    data += range.first;
  } else {
    data = static_cast<std::uint8_t*>(q.to.data) + sequence_offset(q.to, sequence) + head * stride(q.to, 2);
  }
  const std::int64_t row_stride = stride(q.to, 3);  // of Q and K
  const std::int64_t column_stride = stride(q.to, 2);
  Row row;
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    const float scale = q.scale(batch, head, i);
    const bool finite = q.read(rows, transform, i, row) && !std::isnan(scale);
    for (std::int64_t c = 0; c < rows.columns(); ++c) {
      const std::uint8_t element = finite ? to_element(q.options.element, row[c], 1.0F / scale) : 0;
      data[q.transposed ? c * column_stride + value_position(i) : i * row_stride + c] = element;
    }
  }
}

/// Both walks over a tensor. `means` of its heads [batch * heads, columns], or empty.
void quantize_tensor(const Quantisation& q, bool rotated, const std::vector<float>& means, const Execution& execution,
                     int workers) {
  const std::int64_t heads = q.side.heads;
  const std::int64_t count = (Checked(q.side.batch) * heads).value();
  const auto transform = [&](std::int64_t index) {
    return Transform{rotated, q.options.seed, means.empty() ? nullptr : means.data() + index * q.side.columns};
  };
  const std::int64_t units = q.scales.shape[2];
  std::vector<float> largest((Checked(count) * units).value<std::size_t>(), 0.0F);
  const auto of_head = [&](std::int64_t index) {
    return std::span(largest).subspan(static_cast<std::size_t>(index * units), static_cast<std::size_t>(units));
  };
  const auto find = [&](std::int64_t index, int) {
    find_largest(q, index / heads, index % heads, transform(index), of_head(index));
  };
  for_each_task(count, workers, execution.parallel_for, find);
  if (q.unit == ScaleUnit::tensor && count > 0) {
    float& all = largest[0];
    for (const float one : largest) all = !(one <= all) && !std::isnan(all) ? one : all;
  }
  const auto to_scale = [&](float top) {
    return std::isfinite(top) ? std::max(top / largest_element(q.options.element), kSmallestScale) : kNaN;
  };
  const auto write = [&](std::int64_t index, int) {
    const std::span<const float> own = of_head(index);
    for (std::int64_t unit = 0; q.unit != ScaleUnit::tensor && unit < units; ++unit) {
      q.scale(index / heads, index % heads, unit * q.rows_per_scale()) = to_scale(own[static_cast<std::size_t>(unit)]);
    }
    write_rows(q, index / heads, index % heads, transform(index));
  };
  if (q.unit == ScaleUnit::tensor) q.scale(0, 0, 0) = to_scale(count > 0 ? largest[0] : 0.0F);
  for_each_task(count, workers, execution.parallel_for, write);
  clear_behind(q);
}

/// The product of a query and the mean, in the order that call/eight_bit.h prescribes.
float product(const Row& row, const float* mean, std::int64_t columns) {
  double sum = 0.0;
  for (std::int64_t first = 0; first < columns; first += kShiftColumns) {
    std::array<double, kShiftPhases> phases{};
    for (std::int64_t c = first; c < std::min(first + kShiftColumns, columns); ++c) {
      phases[static_cast<std::size_t>(c % kShiftPhases)] += static_cast<double>(row[c]) * static_cast<double>(mean[c]);
    }
    sum += (phases[0] + phases[1]) + (phases[2] + phases[3]);
  }
  return static_cast<float>(sum);
}

/// q_shift: the products of the queries and their keys' mean; 0 behind a sequence's end.
void write_shift(const QuantizeArguments& a, const HostSide& queries, const HostSide& keys,
                 const std::vector<float>& means, const Execution& execution, int workers) {
  const std::int64_t heads = queries.heads;
  const auto write = [&](std::int64_t index, int) {
    const std::int64_t batch = index / heads;
    const std::int64_t head = index % heads;
    const float* mean = means.data() + (batch * keys.heads + head * keys.heads / heads) * keys.columns;
    const Head rows(a.q, queries.sequence(batch), head);
    float* to = static_cast<float*>(a.q_shift.data) + batch * a.q_shift.strides[0] + head * a.q_shift.strides[1];
    Row row;
    for (std::int64_t i = 0; i < rows.rows(); ++i) {
      rows.read(i, row);
      to[i] = product(row, mean, rows.columns());
    }
    std::fill(to + rows.rows(), to + queries.seqlen, 0.0F);
  };
  for_each_task((Checked(queries.batch) * heads).value(), workers, execution.parallel_for, write);
}

}  // namespace

void quantize(const QuantizeArguments& a, const QuantizeOptions& options, const Execution& execution) {
  const int workers = worker_count(execution.threads);
  const HostSide queries(queries_of(a), a.sequences.cu_seqlens_q);
  const HostSide keys(keys_of(a), a.sequences.cu_seqlens_k);
  std::vector<float> means;
  if (options.center_k) {
    const std::int64_t heads = (Checked(keys.batch) * keys.heads).value();
    means.resize((Checked(heads) * keys.columns).value<std::size_t>());
    const auto find = [&](std::int64_t index, int) {
      write_mean(Head(a.k, keys.sequence(index / keys.heads), index % keys.heads), means.data() + index * keys.columns);
    };
    for_each_task(heads, workers, execution.parallel_for, find);
    write_shift(a, queries, keys, means, execution, workers);
    for (std::int64_t head = 0; options.rotate_qk && head < heads; ++head) {
      flip_signs(options.seed, means.data() + head * keys.columns, keys.columns);
    }
  }
  const bool by_rows = options.v_scales == ScaleUnit::row;
  quantize_tensor(
      {.side = queries, .from = a.q, .to = a.q8, .scales = a.q_descale, .unit = options.q_scales, .options = options},
      options.rotate_qk, {}, execution, workers);
  quantize_tensor({.side = keys,
                   .from = a.k,
                   .to = a.k8,
                   .scales = a.k_descale,
                   .unit = options.k_scales,
                   .options = options,
                   .forgives = by_rows},
                  options.rotate_qk, means, execution, workers);
  quantize_tensor({.side = keys,
                   .from = a.v,
                   .to = a.v8,
                   .scales = a.v_descale,
                   .unit = options.v_scales,
                   .options = options,
                   .transposed = true,
                   .companion = by_rows ? &a.k : nullptr},
                  options.rotate_v, {}, execution, workers);
}

}  // namespace strobe::cpu
