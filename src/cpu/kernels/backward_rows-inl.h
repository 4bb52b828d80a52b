// SPDX-License-Identifier: Apache-2.0
// The backward around its key blocks: delta of each query row before them, dQ from its sums after them.
#if defined(STROBE_CPU_BACKWARD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BACKWARD_ROWS_INL_H_
#undef STROBE_CPU_BACKWARD_ROWS_INL_H_
#else
#define STROBE_CPU_BACKWARD_ROWS_INL_H_
#endif

#include "cpu/kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

template <class T>
HWY_INLINE void compute_delta_of(const DeltaTask& task) {
  const Floats d;
  const std::int64_t rows = task.row_end - task.row_begin;
  prefetch_first_rows(task.dtype, task.o, task.row_begin, rows, task.head_dim_v);
  prefetch_first_rows(task.dtype, task.d_o, task.row_begin, rows, task.head_dim_v);
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    if (row + kPrefetchRows < task.row_end) {
      prefetch_rows(task.dtype, task.o, row + kPrefetchRows, row + kPrefetchRows + 1, task.head_dim_v);
      prefetch_rows(task.dtype, task.d_o, row + kPrefetchRows, row + kPrefetchRows + 1, task.head_dim_v);
    }
    const T* HWY_RESTRICT o = static_cast<const T*>(task.o.data) + task.o.offset(row);
    const T* HWY_RESTRICT d_o = static_cast<const T*>(task.d_o.data) + task.d_o.offset(row);
    Vec sums = hn::Zero(d);
    std::int64_t c = 0;
    for (; c + kLanes <= task.head_dim_v; c += kLanes) sums = hn::MulAdd(load(d, o + c), load(d, d_o + c), sums);
    float sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (; c < task.head_dim_v; ++c) sum += to_float(o[c]) * to_float(d_o[c]);
    task.delta[row] = task.d_lse.data == nullptr ? sum : sum - task.d_lse.data[task.d_lse.offset(row)];
  }
}

inline void compute_delta(const DeltaTask& task) {
  switch (task.dtype) {
    case DType::float16: return compute_delta_of<float16>(task);
    case DType::bfloat16: return compute_delta_of<bfloat16>(task);
    default: return compute_delta_of<float>(task);
  }
}

inline void write_query_gradient(const QueryGradientTask& task) {
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    const std::int64_t ahead = std::min(row + kPrefetchRows, task.row_end);
    prefetch_rows(task.dtype, task.dq, ahead, std::min(ahead + 1, task.row_end), task.head_dim);
    store_result(task.dtype, task.dq, row, task.sums + (row - task.row_begin) * task.row_stride, task.head_dim,
                 task.scale);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_BACKWARD_ROWS_INL_H_
