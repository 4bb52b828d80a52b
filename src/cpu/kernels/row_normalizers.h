// SPDX-License-Identifier: Apache-2.0
// What makes probabilities of scores in the backward: LSE, and for rows whose LSE is too large to be precise what a
// pass over their keys finds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/kernels/row_statistics.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

/// From this LSE on its rounding to float32, and scores that the forward has summed in another order, may change a
/// probability by 2^-14 and more.
inline constexpr float kLargeLse = 1024.0F;

/// LSE and 0. A row that sees no key has LSE -inf; +inf instead makes its probabilities 0 and not NaN.
inline void set_from_lse(const NormalizerTask& task, std::int64_t row) {
  const float lse = task.lse.data[task.lse.offset(row)];
  task.normalizers.shift[row] = lse == -kInfinity ? kInfinity : lse;
  task.normalizers.log2_sum[row] = 0.0F;
}

inline bool has_large_lse(const NormalizerTask& task, std::int64_t row) {
  const float lse = std::fabs(task.normalizers.shift[row]);
  return lse >= kLargeLse && lse < kInfinity;
}

/// Sets all of the task's rows from LSE, and calls use(row, rows) for each `group` of them that has a large one.
template <class Use>
void for_each_group_with_large_lse(const NormalizerTask& task, std::int64_t group, const Use& use) {
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) set_from_lse(task, row);
  for (std::int64_t first = task.row_begin; first < task.row_end; first += group) {
    const std::int64_t rows = std::min(group, task.row_end - first);
    bool large = false;
    for (std::int64_t i = 0; i < rows; ++i) large = large || has_large_lse(task, first + i);
    if (large) use(first, rows);
  }
}

/// The row's own statistics, which hold what LSE has lost; the sink joins them. Where LSE is another one, as that of a
/// row of which these keys are a part, it stays.
inline void set_from_statistics(const NormalizerTask& task, std::int64_t row, RowStatistics statistics) {
  if (task.sinks != nullptr) statistics.add_sink(task.sinks[row_place(row, task.q.group).head]);
  const double lse = task.normalizers.shift[row];
  // Both are rounded, and made of sums of as many products as there are columns, whose roundings add up as a random
  // walk.
  const double roundings = 4.0 + 2.0 * std::sqrt(static_cast<double>(task.head_dim + task.qv_columns));
  if (!(std::fabs(statistics.exact_lse() - lse) <= roundings * 0x1p-24 * std::fabs(lse))) return;
  task.normalizers.shift[row] = static_cast<float>(statistics.max);
  task.normalizers.log2_sum[row] = std::log2(statistics.sum);
}

}  // namespace strobe::cpu
