// SPDX-License-Identifier: Apache-2.0
// The rows of a merge and of its gradient: where they lie, and what each part weighs in them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "cpu/passes.h"
#include "cpu/workers.h"
#include "strobe/merge.h"

namespace strobe::cpu {

template <class T>
T from_float(float value);
template <>
inline float from_float(float value) {
  return value;
}
template <>
inline float16 from_float(float value) {
  return to_float16(value);
}
template <>
inline bfloat16 from_float(float value) {
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

inline std::int64_t index_in_o(const ConstTensorView& o, const Place& at) {
  const auto axis = static_cast<std::size_t>(o.rank - 3);  // of the rows
  return (axis == 0 ? 0 : at.batch * o.strides[0]) + at.row * o.strides[axis] + at.head * o.strides[axis + 1];
}

inline std::int64_t index_in_lse(const ConstTensorView& lse, const Place& at) {
  const auto axis = static_cast<std::size_t>(lse.rank - 2);  // of the heads
  return (axis == 0 ? 0 : at.batch * lse.strides[0]) + at.head * lse.strides[axis] + at.row;
}

/// Each part's weight in one row, and the row's LSE. Parts that saw no key weigh nothing.
struct Weights {
  std::array<float, kMaxMergedParts> of_part;
  float lse;
};

inline void weigh(std::span<const PartialResult> parts, const Place& at, Weights& weights) {
  const auto lse_of = [&](const PartialResult& part) {
    return static_cast<const float*>(part.lse.data)[index_in_lse(part.lse, at)];
  };
  float largest = -kInfinity;
  bool defined = true;
  for (const PartialResult& part : parts) {
    const float lse = lse_of(part);
    defined = defined && lse < kInfinity;  // false for NaN, too
    largest = std::max(largest, lse);
  }
  double sum = 0.0;
  std::array<double, kMaxMergedParts> exponentials;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const float lse = lse_of(parts[i]);
    exponentials[i] = lse == -kInfinity ? 0.0 : std::exp(static_cast<double>(lse) - static_cast<double>(largest));
    sum += exponentials[i];
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    weights.of_part[i] = sum > 0.0 ? static_cast<float>(exponentials[i] / sum) : 0.0F;
  }
  weights.lse = !defined    ? std::numeric_limits<float>::quiet_NaN()
                : sum > 0.0 ? static_cast<float>(static_cast<double>(largest) + std::log(sum))
                            : -kInfinity;
}

/// visit(place, weights) of each row, with memory for its weights. A task has some rows of a head.
template <class Visit>
void for_each_row(const ConstTensorView& o, const Execution& execution, const Visit& visit) {
  constexpr std::int64_t kRowsPerTask = 64;
  const Extents extents(o);
  const std::int64_t chunks = ceil_div(extents.rows, kRowsPerTask);
  const auto task = [&](std::int64_t index, int) {
    const std::int64_t flat_head = index / chunks;
    const std::int64_t first = index % chunks * kRowsPerTask;
    Weights weights{};
    for (std::int64_t row = first; row < std::min(first + kRowsPerTask, extents.rows); ++row) {
      visit(Place{flat_head / extents.heads, row, flat_head % extents.heads}, weights);
    }
  };
  for_each_task((Checked(extents.batch) * extents.heads * chunks).value(), worker_count(execution.threads),
                execution.parallel_for, task);
}

}  // namespace strobe::cpu
