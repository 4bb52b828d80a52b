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

#include "call/eight_bit.h"
#include "cpu/passes.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

constexpr std::size_t kMostColumns = 512;
using Row = std::array<float, kMostColumns>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Rows of one head of a batched tensor.
class Head {
 public:
  Head(const ConstTensorView& tensor, std::int64_t batch, std::int64_t head)
      : tensor_(tensor), start_(batch * tensor.strides[0] + head * tensor.strides[2]) {}

  std::int64_t rows() const { return tensor_.shape[1]; }
  std::int64_t columns() const { return tensor_.shape[3]; }

  /// Widened to float32. False if an element is not finite.
  bool read(std::int64_t row, Row& to) const {
    const std::int64_t at = start_ + row * tensor_.strides[1];
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
  std::int64_t start_;
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
  return static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(std::nearbyint(exact), -127.0, 127.0)));
}

/// One of the three tensors: how it is read, and where its elements and scales go.
struct Quantisation {
  const ConstTensorView& from;
  const TensorView& to;
  const TensorView& scales;
  ScaleUnit unit = ScaleUnit::row;
  const QuantizeOptions& options;
  bool transposed = false;                     // V
  const ConstTensorView* companion = nullptr;  // V with scales by rows: of keys that are not finite, too
  bool forgives = false;                       // K, where such a companion tells

  std::int64_t rows_per_scale() const { return strobe::rows_per_scale(unit, from.shape[1]); }

  float& scale(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    const bool shared = unit == ScaleUnit::tensor;
    return static_cast<float*>(
        scales.data)[(shared ? 0 : batch * scales.strides[0] + head * scales.strides[1]) + row / rows_per_scale()];
  }

  /// Transforms row `row`; false if it is not to be had.
  bool read(const Head& head, const Transform& transform, std::int64_t row, Row& to_row) const {
    if (!head.read(row, to_row)) return false;
    transform.apply(to_row, from.shape[3]);
    return true;
  }
};

/// The largest magnitudes of one head's units, in `largest`; NaN where a row that counts is not finite.
void find_largest(const Quantisation& q, std::int64_t batch, std::int64_t head, const Transform& transform,
                  std::span<float> largest) {
  const Head rows(q.from, batch, head);
  const std::int64_t step = q.rows_per_scale();
  Row row;
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    float& unit = largest[static_cast<std::size_t>(i / step)];
    bool finite = q.read(rows, transform, i, row);
    float top = 0.0F;
    for (std::int64_t c = 0; finite && c < rows.columns(); ++c) top = std::max(top, std::fabs(row[c]));
    if (q.companion != nullptr) finite = Head(*q.companion, batch, head).read(i, row) && finite;
    if (!finite) top = q.forgives ? 0.0F : kNaN;
    if (!(top <= unit)) unit = std::isnan(unit) ? unit : top;
  }
}

void write_rows(const Quantisation& q, std::int64_t batch, std::int64_t head, const Transform& transform) {
  const Head rows(q.from, batch, head);
  auto* const data = static_cast<std::uint8_t*>(q.to.data) + batch * q.to.strides[0];
  if (q.transposed) {
    for (std::int64_t c = 0; c < rows.columns(); ++c) {
      std::memset(data + head * q.to.strides[1] + c * q.to.strides[2], 0, static_cast<std::size_t>(q.to.shape[3]));
    }
  }
  Row row;
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    const float scale = q.scale(batch, head, i);
    const bool finite = q.read(rows, transform, i, row) && !std::isnan(scale);
    for (std::int64_t c = 0; c < rows.columns(); ++c) {
      const std::uint8_t element = finite ? to_element(q.options.element, row[c], 1.0F / scale) : 0;
      const std::int64_t at = q.transposed ? head * q.to.strides[1] + c * q.to.strides[2] + value_position(i)
                                           : i * q.to.strides[1] + head * q.to.strides[2] + c;
      data[at] = element;
    }
  }
}

/// Both walks over a tensor. `means` of its heads [batch * heads, columns], or empty.
void quantize_tensor(const Quantisation& q, bool rotated, const std::vector<float>& means, const Execution& execution,
                     int workers) {
  const std::int64_t heads = q.from.shape[2];
  const std::int64_t count = q.from.shape[0] * heads;
  const auto transform = [&](std::int64_t index) {
    return Transform{rotated, q.options.seed, means.empty() ? nullptr : means.data() + index * q.from.shape[3]};
  };
  const std::int64_t units = q.scales.shape[2];
  std::vector<float> largest(static_cast<std::size_t>(count * units), 0.0F);
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

/// q_shift: the products of the queries and their keys' mean.
void write_shift(const QuantizeArguments& a, const std::vector<float>& means, const Execution& execution, int workers) {
  const std::int64_t heads = a.q.shape[2];
  const std::int64_t heads_kv = a.k.shape[2];
  const auto write = [&](std::int64_t index, int) {
    const std::int64_t batch = index / heads;
    const std::int64_t head = index % heads;
    const float* mean = means.data() + (batch * heads_kv + head * heads_kv / heads) * a.k.shape[3];
    const Head queries(a.q, batch, head);
    float* to = static_cast<float*>(a.q_shift.data) + batch * a.q_shift.strides[0] + head * a.q_shift.strides[1];
    Row row;
    for (std::int64_t i = 0; i < queries.rows(); ++i) {
      queries.read(i, row);
      to[i] = product(row, mean, queries.columns());
    }
  };
  for_each_task(a.q.shape[0] * heads, workers, execution.parallel_for, write);
}

}  // namespace

void quantize(const QuantizeArguments& a, const QuantizeOptions& options, const Execution& execution) {
  const int workers = worker_count(execution.threads);
  std::vector<float> means;
  if (options.center_k) {
    const std::int64_t heads = a.k.shape[0] * a.k.shape[2];
    means.resize(static_cast<std::size_t>(heads * a.k.shape[3]));
    const auto find = [&](std::int64_t index, int) {
      write_mean(Head(a.k, index / a.k.shape[2], index % a.k.shape[2]), means.data() + index * a.k.shape[3]);
    };
    for_each_task(heads, workers, execution.parallel_for, find);
    write_shift(a, means, execution, workers);
    for (std::int64_t head = 0; options.rotate_qk && head < heads; ++head) {
      flip_signs(options.seed, means.data() + head * a.k.shape[3], a.k.shape[3]);
    }
  }
  const bool by_rows = options.v_scales == ScaleUnit::row;
  quantize_tensor({.from = a.q, .to = a.q8, .scales = a.q_descale, .unit = options.q_scales, .options = options},
                  options.rotate_qk, {}, execution, workers);
  quantize_tensor({.from = a.k,
                   .to = a.k8,
                   .scales = a.k_descale,
                   .unit = options.k_scales,
                   .options = options,
                   .forgives = by_rows},
                  options.rotate_qk, means, execution, workers);
  quantize_tensor({.from = a.v,
                   .to = a.v8,
                   .scales = a.v_descale,
                   .unit = options.v_scales,
                   .options = options,
                   .transposed = true,
                   .companion = by_rows ? &a.k : nullptr},
                  options.rotate_v, {}, execution, workers);
}

}  // namespace strobe::cpu
