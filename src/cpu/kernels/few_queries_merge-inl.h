// SPDX-License-Identifier: Apache-2.0
// Few queries: the merge of what chunks of keys have left.
#if defined(STROBE_CPU_FEW_QUERIES_MERGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_FEW_QUERIES_MERGE_INL_H_
#undef STROBE_CPU_FEW_QUERIES_MERGE_INL_H_
#else
#define STROBE_CPU_FEW_QUERIES_MERGE_INL_H_
#endif

#include <algorithm>

#include "cpu/kernels/few_queries.h"
#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/row_statistics.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// What is taken from the scores of a row: its maximum, but not -inf, which would make NaN of a row without a key.
HWY_INLINE Vec shift_of(Vec row_max) {
  const Floats d;
  return hn::IfThenElse(hn::Eq(row_max, hn::Set(d, -kInfinity)), hn::Zero(d), row_max);
}

/// Merges the states of one group of heads, `stride` floats apart, in the order of the chunks, and writes its rows.
HWY_INLINE void merge_few_queries(const ForwardTask& task, const float* states, std::int64_t chunks,
                                  std::int64_t stride, float* HWY_RESTRICT row_buffer) {
  const Floats d;
  const std::int64_t rows = task.row_end;
  const std::int64_t columns = round_up(task.head_dim_v, kLanes);
  for (std::int64_t row = 0; row < rows; ++row) {
    RowMaximum maximum;
    float sum = 0.0F;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float row_max = ConstFewQueriesState(states + chunk * stride, rows).row_max[row];
      maximum.units = std::max(maximum.units, row_max);
    }
    std::fill_n(row_buffer, columns, 0.0F);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const ConstFewQueriesState part(states + chunk * stride, rows);
      const Vec below = hn::Sub(hn::Set(d, part.row_max[row]), shift_of(hn::Set(d, maximum.units)));
      const Vec weight = exp2(hn::Mul(below, hn::Set(d, task.exponent_factor())));
      sum += hn::GetLane(weight) * part.row_sum[row];
      const float* HWY_RESTRICT output = part.output + row * columns;
      for (std::int64_t c = 0; c < columns; c += kLanes) {
        const Vec added = hn::MulAdd(weight, hn::LoadU(d, output + c), hn::LoadU(d, row_buffer + c));
        hn::StoreU(added, d, row_buffer + c);
      }
    }
    const Vec factor = hn::Set(d, finish_statistics(task, row, maximum, sum));
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, row_buffer + c), factor), d, row_buffer + c);
    }
    store_result(task.dtype_o, task.o, row, row_buffer, task.head_dim_v);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_FEW_QUERIES_MERGE_INL_H_
