// SPDX-License-Identifier: Apache-2.0
// Weights in float64, sums of columns in float32, a task for some rows of a head.
#include "cpu/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/limits.h"
#include "cpu/passes.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

constexpr std::int64_t kRowsPerTask = 64;

template <class T>
T from_float(float value);
template <>
float from_float(float value) {
  return value;
}
template <>
float16 from_float(float value) {
  return to_float16(value);
}
template <>
bfloat16 from_float(float value) {
  return to_bfloat16(value);
}

/// A tensor's extents and strides, packed ones being a batch of 1.
struct Extents {
  explicit Extents(const ConstTensorView& o)
      : batch(o.rank == 3 ? 1 : o.shape[0]),
        rows(o.shape[static_cast<std::size_t>(o.rank - 3)]),
        heads(o.shape[static_cast<std::size_t>(o.rank - 2)]),
        columns(o.shape[static_cast<std::size_t>(o.rank - 1)]) {}
  std::int64_t batch, rows, heads, columns;
};

struct Place {
  std::int64_t batch, row, head;
};

std::int64_t index_in_o(const ConstTensorView& o, const Place& at) {
  const auto axis = static_cast<std::size_t>(o.rank - 3);  // of the rows
  return (axis == 0 ? 0 : at.batch * o.strides[0]) + at.row * o.strides[axis] + at.head * o.strides[axis + 1];
}

std::int64_t index_in_lse(const ConstTensorView& lse, const Place& at) {
  const auto axis = static_cast<std::size_t>(lse.rank - 2);  // of the heads
  return (axis == 0 ? 0 : at.batch * lse.strides[0]) + at.head * lse.strides[axis] + at.row;
}

/// Each part's weight in one row, and the row's LSE. Parts that saw no key weigh nothing.
struct Weights {
  std::array<float, kMaxMergedParts> of_part;
  float lse;
};

void weigh(const MergeArguments& a, const Place& at, Weights& weights) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto lse_of = [&](const PartialResult& part) {
    return static_cast<const float*>(part.lse.data)[index_in_lse(part.lse, at)];
  };
  float largest = -kInfinity;
  bool defined = true;
  for (const PartialResult& part : a.parts) {
    const float lse = lse_of(part);
    defined = defined && lse < kInfinity;  // false for NaN, too
    largest = std::max(largest, lse);
  }
  double sum = 0.0;
  std::array<double, kMaxMergedParts> exponentials;
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    const float lse = lse_of(a.parts[i]);
    exponentials[i] = lse == -kInfinity ? 0.0 : std::exp(static_cast<double>(lse) - static_cast<double>(largest));
    sum += exponentials[i];
  }
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    weights.of_part[i] = sum > 0.0 ? static_cast<float>(exponentials[i] / sum) : 0.0F;
  }
  weights.lse = !defined    ? std::numeric_limits<float>::quiet_NaN()
                : sum > 0.0 ? static_cast<float>(static_cast<double>(largest) + std::log(sum))
                            : -kInfinity;
}

template <class From, class To>
void merge_row(const MergeArguments& a, std::int64_t columns, const Place& at, const Weights& weights) {
  std::array<float, kMaxHeadDim> sums{};
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    const PartialResult& part = a.parts[i];
    if (static_cast<const float*>(part.lse.data)[index_in_lse(part.lse, at)] ==
        -std::numeric_limits<float>::infinity()) {
      continue;  // whatever it holds
    }
    const From* from = static_cast<const From*>(part.o.data) + index_in_o(part.o, at);
    const float weight = weights.of_part[i];
    for (std::int64_t c = 0; c < columns; ++c) sums[static_cast<std::size_t>(c)] += weight * to_float(from[c]);
  }
  To* to = static_cast<To*>(a.o.data) + index_in_o(a.o, at);
  if (std::isnan(weights.lse)) sums.fill(weights.lse);
  for (std::int64_t c = 0; c < columns; ++c) to[c] = from_float<To>(sums[static_cast<std::size_t>(c)]);
}

template <class From, class To>
void merge_as(const MergeArguments& a, const Execution& execution) {
  const Extents extents(a.o);
  const std::int64_t chunks = ceil_div(extents.rows, kRowsPerTask);
  const auto task = [&](std::int64_t index, int) {
    const std::int64_t flat_head = index / chunks;
    const std::int64_t first = index % chunks * kRowsPerTask;
    Weights weights{};
    for (std::int64_t row = first; row < std::min(first + kRowsPerTask, extents.rows); ++row) {
      const Place at{flat_head / extents.heads, row, flat_head % extents.heads};
      weigh(a, at, weights);
      merge_row<From, To>(a, extents.columns, at, weights);
      if (a.lse.given()) static_cast<float*>(a.lse.data)[index_in_lse(a.lse, at)] = weights.lse;
    }
  };
  for_each_task((Checked(extents.batch) * extents.heads * chunks).value(), worker_count(execution.threads),
                execution.parallel_for, task);
}

template <class From>
void merge_from(const MergeArguments& a, const Execution& execution) {
  switch (a.o.dtype) {
    case DType::float16: return merge_as<From, float16>(a, execution);
    case DType::bfloat16: return merge_as<From, bfloat16>(a, execution);
    default: return merge_as<From, float>(a, execution);
  }
}

}  // namespace

void merge(const MergeArguments& a, const Execution& execution) {
  switch (a.parts.front().o.dtype) {
    case DType::float16: return merge_from<float16>(a, execution);
    case DType::bfloat16: return merge_from<bfloat16>(a, execution);
    default: return merge_from<float>(a, execution);
  }
}

}  // namespace strobe::cpu
