// SPDX-License-Identifier: Apache-2.0
// dK and dV of a block of keys, from the sums that its backward leaves.
#if defined(STROBE_CPU_KEY_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_KEY_GRADIENTS_INL_H_
#undef STROBE_CPU_KEY_GRADIENTS_INL_H_
#else
#define STROBE_CPU_KEY_GRADIENTS_INL_H_
#endif

#include <algorithm>

#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"
#include "cpu/kernels/traits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

class KeyGradients {
 public:
  /// `count` keys of the task.
  KeyGradients(const BackwardTask& task, const BackwardScratch& scratch, std::int64_t count)
      : task_(task), scratch_(scratch), count_(count), d_(scratch.columns), dv_(scratch.columns_v) {}

  void write() {
    write_keys(scratch_.dk, d_, task_.head_dim, task_.scale, task_.dk);
    if (task_.qv_columns > 0) add_value_products();
    write_keys(scratch_.dv, dv_, task_.head_dim_v, 1.0F, task_.dv);
  }

 private:
  /// dV += scale * dS^T qv, which is summed behind dK.
  void add_value_products() {
    const Floats d;
    const Vec scale = hn::Set(d, task_.scale);
    for (std::int64_t key = 0; key < count_; key += kPanel) {
      const float* HWY_RESTRICT from = scratch_.dk + key * d_ + round_up(task_.head_dim, kStrip) * kPanel;
      float* HWY_RESTRICT to = scratch_.dv + key * dv_;
      for (std::int64_t i = 0; i < dv_ * kPanel; i += kLanes) {
        hn::Store(hn::MulAdd(hn::Load(d, from + i), scale, hn::Load(d, to + i)), d, to + i);
      }
    }
  }

  /// factor * sums, panels of `padded_columns`, into the block's rows of `to`.
  void write_keys(const float* sums, std::int64_t padded_columns, std::int64_t columns, float factor,
                  const MutableRows& to) {
    const std::int64_t stride = round_up(columns, kLanes);
    prefetch_first_results(to, 0, columns);
    for (std::int64_t key = 0; key < count_; key += kTransposedRows) {
      prefetch_first_results(to, key + kTransposedRows, columns);
      const float* panel = sums + round_down(key, kPanel) * padded_columns + key % kPanel;
      transpose_columns(panel, kPanel, columns, stride, scratch_.row);
      for (std::int64_t i = 0; i < std::min(kTransposedRows, count_ - key); ++i) {
        store_result(task_.dtype, to, task_.key_begin + key + i, scratch_.row + i * stride, columns, factor);
      }
    }
  }

  /// Fetches the rows that are written from `key` on.
  void prefetch_first_results(const MutableRows& to, std::int64_t key, std::int64_t columns) {
    prefetch_rows(task_.dtype, to, task_.key_begin + std::min(key, count_),
                  task_.key_begin + std::min(key + kTransposedRows, count_), columns);
  }

  const BackwardTask& task_;
  const BackwardScratch& scratch_;
  const std::int64_t count_;
  const std::int64_t d_;  // as of BackwardBlock
  const std::int64_t dv_;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_KEY_GRADIENTS_INL_H_
