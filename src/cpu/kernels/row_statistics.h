// SPDX-License-Identifier: Apache-2.0
// What the online softmax leaves of a row, what is made of it once all keys have been seen, and what the backward takes
// from it.
#pragma once

#include <atomic>
#include <cmath>

#include "call/score_rule.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

/// Maximum of the base-2 exponents of a row, and the sum of 2^(exponent - max).
struct RowStatistics {
  static constexpr double kLn2 = 0.693147180559945309417232121458176568;

  float max = -kInfinity;
  float sum = 0.0F;

  /// The largest score; NaN where a score was NaN, -inf where no key was seen.
  float max_logit() const {
    // An infinite score makes the sum NaN, too.
    if (std::isnan(sum) && max != kInfinity) return sum;
    return static_cast<float>(static_cast<double>(max) * kLn2);
  }

  /// One more exponent without a value. Returns what the row's output is to be multiplied with.
  float add_sink(float exponent) {
    const float largest = std::fmax(max, exponent);
    if (largest == -kInfinity) return 1.0F;
    const float rescale = std::exp2(max - largest);
    sum = sum * rescale + std::exp2(exponent - largest);
    max = largest;
    return rescale;
  }

  float lse() const {
    if (sum == 0.0F) return -kInfinity;
    return static_cast<float>(static_cast<double>(max) * kLn2 + std::log(static_cast<double>(sum)));
  }
};

/// to = max(to, value) among tasks that do the same at the same time; NaN once there stays.
inline void raise(float& to, float value) {
  const std::atomic_ref<float> shared(to);
  float now = shared.load(std::memory_order_relaxed);
  while (!std::isnan(now) && !(value <= now)) {
    if (shared.compare_exchange_weak(now, value, std::memory_order_relaxed)) return;
  }
}

/// Writes what the caller asked for of row `row` and its statistics, taken by value as the sink joins them. Returns
/// what the row's output is to be multiplied by. The products that the statistics are of lack `shift`: unless softcap
/// has asked for it already.
inline float finish_statistics(const ForwardTask& task, std::int64_t row, RowStatistics statistics,
                               float shift = 0.0F) {
  if (!task.score_scale.capped && statistics.max != -kInfinity) statistics.max += shift * task.score_scale.scale_log2;
  const std::int64_t head = row % task.q.group;
  const float keep = task.dropout.given ? task.dropout.key.keep_probability() : 1.0F;
  if (task.max_logits != nullptr) raise(task.max_logits[head], statistics.max_logit());
  const float rescale = task.sinks == nullptr ? 1.0F : statistics.add_sink(task.sinks[head] * kLog2E);
  if (task.lse.data != nullptr) task.lse.data[task.lse.offset(row)] = statistics.lse();
  return statistics.sum == 0.0F ? 0.0F : rescale / (statistics.sum * keep);
}

/// The backward's exponents are score - LSE in base 2. A row that sees no key has LSE -inf; +inf instead makes its
/// probabilities 0 and not NaN.
inline float lse_log2(float lse) { return lse == -kInfinity ? kInfinity : lse * kLog2E; }

}  // namespace strobe::cpu
