// SPDX-License-Identifier: Apache-2.0
// What the online softmax leaves of a row, and what is made of it once all keys have been seen.
#pragma once

#include <atomic>
#include <cmath>
#include <numbers>

#include "call/score_rule.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

/// The largest score of a row, and the sum of exp(score - max).
struct RowStatistics {
  double max = -kInfinity;
  float sum = 0.0F;

  /// The largest score; NaN where a score was NaN, -inf where no key was seen.
  float max_logit() const {
    // An infinite score makes the sum NaN, too.
    if (std::isnan(sum) && max != kInfinity) return sum;
    return static_cast<float>(max);
  }

  /// One more score without a value. Returns what the row's output is to be multiplied with.
  float add_sink(float score) {
    const double largest = std::fmax(max, score);
    if (largest == -kInfinity) return 1.0F;
    const double rescale = std::exp(max - largest);
    sum = static_cast<float>(sum * rescale + std::exp(score - largest));
    max = largest;
    return static_cast<float>(rescale);
  }

  double exact_lse() const { return max + std::log(static_cast<double>(sum)); }
  float lse() const { return sum == 0.0F ? -kInfinity : static_cast<float>(exact_lse()); }
};

/// to = max(to, value) among tasks that do the same at the same time; NaN once there stays.
inline void raise(float& to, float value) {
  const std::atomic_ref<float> shared(to);
  float now = shared.load(std::memory_order_relaxed);
  while (!std::isnan(now) && !(value <= now)) {
    if (shared.compare_exchange_weak(now, value, std::memory_order_relaxed)) return;
  }
}

/// What the kernels leave of a row.
struct RowMaximum {
  float units = -kInfinity;  // as the softmax works on: ForwardTask::score_factor() makes a score of it
  float shift = 0.0F;        // what products lack: unless it has been added to them already
  float log2_offset = 0.0F;  // base-2 exponent on top

  double score(const ForwardTask& task) const {
    if (units == -kInfinity) return -kInfinity;
    const double lacking = task.needs_shifted_products() ? 0.0 : static_cast<double>(shift) * task.score_scale.scale;
    return static_cast<double>(units) * task.score_factor() + lacking + log2_offset * std::numbers::ln2;
  }
};

/// Writes what the caller asked for of row `row`, whose sum is of exp(score - maximum). Returns what the row's output
/// is to be multiplied by.
inline float finish_statistics(const ForwardTask& task, std::int64_t row, const RowMaximum& maximum, float sum) {
  RowStatistics statistics{maximum.score(task), sum};
  const std::int64_t head = row % task.q.group;
  const float keep = task.dropout.given ? task.dropout.key.keep_probability() : 1.0F;
  if (task.max_logits != nullptr) raise(task.max_logits[head], statistics.max_logit());
  const float rescale = task.sinks == nullptr ? 1.0F : statistics.add_sink(task.sinks[head]);
  if (task.lse.data != nullptr) task.lse.data[task.lse.offset(row)] = statistics.lse();
  return statistics.sum == 0.0F ? 0.0F : rescale / (statistics.sum * keep);
}

}  // namespace strobe::cpu
