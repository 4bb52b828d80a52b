// SPDX-License-Identifier: Apache-2.0
// The products of few queries with a block of keys that every row of every head sees, and whose rows are used where
// they lie. Reading K and V takes the time, and the processor's instruction window limits how many reads are in flight:
// so there is as little as possible between one row and the next, and what does not change is a constant.
#if defined(STROBE_CPU_FEW_QUERIES_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_FEW_QUERIES_STEPS_INL_H_
#undef STROBE_CPU_FEW_QUERIES_STEPS_INL_H_
#else
#define STROBE_CPU_FEW_QUERIES_STEPS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <type_traits>

#include "cpu/kernels/few_queries_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Whether rows of K and V are used where they lie. 16-bit rows of many queries, or of queries across the lanes, are
/// widened once instead of for each group of them.
HWY_INLINE bool used_in_place(const ForwardTask& task, std::int64_t rows, std::int64_t panel_rows) {
  if (task.row_invariant || task.stored.given()) return false;
  if (task.head_dim % kLanes != 0 || task.head_dim_v % kLanes != 0) return false;
  if (task.dtype == DType::float32) return true;
  return rows <= kRowGroup && panel_rows == 0 && (task.dtype == DType::bfloat16 || kNativeFloat16);
}

/// A head's keys with its queries and scores, or its values with its probabilities and output.
template <class T>
struct HeadRows {
  const T* rows = nullptr;  // of the sequence's first key, or of its first page
  const float* factors = nullptr;
  float* results = nullptr;
};

/// Where the steps of a block lie, in elements from HeadRows::rows.
struct StepPlaces {
  std::array<std::int64_t, kFewQueriesKeys / kStep + 1> offsets{};  // and where the step after the block lies
  std::int64_t steps = 0;
  std::int64_t stride = 0;  // from one key's row to the next
};

/// Of keys [key, key + count), if they are whole steps, each in one page; `keys`: of the sequence.
inline std::optional<StepPlaces> places_of(const ConstRows& rows, std::int64_t key, std::int64_t count,
                                           std::int64_t keys) {
  if (count % kStep != 0) return std::nullopt;
  StepPlaces places{.steps = count / kStep, .stride = rows.position_stride};
  for (std::int64_t step = 0; step < places.steps; ++step) {
    const std::int64_t first = key + step * kStep;
    if (!rows.pages.holds_together(first, kStep)) return std::nullopt;
    places.offsets[static_cast<std::size_t>(step)] = rows.offset(first);
  }
  const std::int64_t last = std::min(key + count, keys - 1);
  places.offsets[static_cast<std::size_t>(places.steps)] = rows.offset(last);
  return places;
}

/// The query rows of each head, and the columns of what they are multiplied by.
struct StepShape {
  std::int64_t query_rows = 0;
  std::int64_t panel_rows = 0;  // of them, those that lie across the lanes
  std::int64_t columns = 0;     // whole vectors
};

/// Whether each row that is read fetches the row of the next step: conversions and the products of several queries
/// leave too few reads in flight. That gains a quarter and more from memory and costs an eighth in a cache. One and two
/// rows of float32 are read as fast without. kRows: of a head; 0: any number.
template <int kRows, class T>
inline constexpr bool kFetchesRows = !std::is_same_v<T, float> || kRows == 0 || kRows > 2;

/// Calls use(head, rows, first) for kStep keys from `first` on and every head, then the next keys.
template <int kRows, class T, class Use>
HWY_INLINE void for_each_step_of_heads(std::span<const HeadRows<T>> heads, const StepPlaces& places, const Use& use) {
  for (std::int64_t step = 0; step < places.steps; ++step) {
    const std::int64_t offset = places.offsets[static_cast<std::size_t>(step)];
    const std::int64_t ahead = places.offsets[static_cast<std::size_t>(step + 1)] - offset;
    for (const HeadRows<T>& head : heads) {
      use(head, BlockRows<T, kFetchesRows<kRows, T>>{head.rows + offset, places.stride, ahead}, step * kStep);
    }
  }
}

/// The products of queries across the lanes. Elements of K are broadcast one by one: its rows are fetched apart.
HWY_INLINE void multiply_panels(const HeadRows<float>& head, const StepShape& shape, const BlockRows<float, true>& keys,
                                std::int64_t first) {
  if (shape.panel_rows == 0) return;
  for (std::int64_t key = 0; key < kStep; ++key) {
    for (std::int64_t c = 0; c < shape.columns; c += kLanes) fetch_ahead<true>(keys[key] + c, c, keys.ahead);
  }
  for (std::int64_t row = 0; row < shape.panel_rows; row += kLanes) {
    multiply_panel_queries(head.factors + row * shape.columns, shape.columns, BlockRows<float>{keys.data, keys.stride},
                           kStep, head.results + row * kFewQueriesKeys + first);
  }
}

/// S = Q K^T of all heads. kRows: of a head, the size of a group; 0: as many as `shape` says.
template <int kRows, class T>
HWY_NOINLINE void multiply_steps(std::span<const HeadRows<T>> heads, const StepPlaces& places, const StepShape& shape) {
  for_each_step_of_heads<kRows>(heads, places, [&](const HeadRows<T>& head, const auto& keys, std::int64_t first) {
    if constexpr (kRows > 0) return multiply_step<kRows>(head.factors, shape.columns, keys, head.results + first);
    if constexpr (kRows == 0 && std::is_same_v<T, float>) multiply_panels(head, shape, keys, first);
    multiply_queries(head.factors + round_up(shape.panel_rows, kLanes) * shape.columns,
                     shape.query_rows - shape.panel_rows, shape.columns, keys, kStep,
                     head.results + shape.panel_rows * kFewQueriesKeys + first);
  });
}

/// O += P V of all heads.
template <int kRows, class T>
HWY_NOINLINE void add_steps(std::span<const HeadRows<T>> heads, const StepPlaces& places, const StepShape& shape) {
  const std::int64_t rows = kRows > 0 ? kRows : shape.query_rows;
  for_each_step_of_heads<kRows>(heads, places, [&](const HeadRows<T>& head, const auto& values, std::int64_t first) {
    for_each_value_group(rows, [&](auto group, std::int64_t row) {
      const float* p = head.factors + row * kFewQueriesKeys + first;
      float* output = head.results + row * shape.columns;
      if (row == 0) return add_values<group>(p, values, 0, kStep, shape.columns, output);
      add_values<group>(p, BlockRows<T>{values.data, values.stride}, 0, kStep, shape.columns, output);  // fetched once
    });
  });
}

/// Calls run(rows) with the constant that multiply_steps() and add_steps() take.
template <class Run>
HWY_INLINE void with_step_rows(std::int64_t rows, const Run& run) {
  if (rows == 1) return run(std::integral_constant<int, 1>());
  if (rows == 2) return run(std::integral_constant<int, 2>());
  if constexpr (kRowGroup > 2) {
    if (rows == kRowGroup) return run(std::integral_constant<int, kRowGroup>());
  }
  run(std::integral_constant<int, 0>());
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_FEW_QUERIES_STEPS_INL_H_
