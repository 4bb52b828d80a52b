// SPDX-License-Identifier: Apache-2.0
// Gradients of the bias and the sink: zeros to begin with, and an order to add in.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include "cpu/call.h"
#include "cpu/kernels/task.h"
#include "cpu/plan.h"

namespace strobe::cpu {

/// Whether each element of d_bias belongs to one task, which writes it whether or not anything contributes.
bool writes_bias_gradient_alone(const AttentionProblem& problem);

/// Zeros all of d_bias, if it is given and tasks add to it.
void clear_bias_gradient(const Call& call, const TensorView& d_bias);

/// One row's share of d_sink: its probability by RowNormalizers times -delta, as the sink has no value.
inline double sink_gradient(float sink, float shift, float log2_sum, float delta) {
  if (std::isinf(sink) && sink < 0.0F) return 0.0;
  const double below = static_cast<double>(sink) - static_cast<double>(shift);
  return -std::exp(below - log2_sum * std::numbers::ln2) * static_cast<double>(delta);
}

/// Where heads or sequences share a bias, several tasks add to the same elements of d_bias: those of one block of keys
/// in the order of the tasks, so that the sums have the same bits whatever thread runs what.
class BiasTurns {
 public:
  /// `turns` is an element for each block of keys over the batch and key head.
  BiasTurns(const AttentionProblem& problem, const Batch& batch, std::atomic<std::int32_t>* turns);

  /// Before any key block's task.
  void start() const;

  BiasTurn of(const BlockPlace& place) const;

 private:
  std::atomic<std::int32_t>* at(const Sequence& sequence, std::int64_t head_kv, std::int64_t block) const;
  const std::atomic<std::int32_t>* before(const BlockPlace& place) const;

  const AttentionProblem& problem_;
  const Batch& batch_;
  std::atomic<std::int32_t>* turns_;  // [key blocks over the batch, heads_kv]; null: nobody waits
};

/// Gradients of captures: every task of a block of keys adds to elements that others may share, in the order of the
/// tasks, so that sums have the same bits whatever thread runs what. Heads and sequences whose elements are their own
/// do not wait for one another.
class CaptureTurns {
 public:
  /// `turns` is an element for each block of keys over the batch and key head.
  CaptureTurns(const CallPlan& plan, const AttentionProblem& problem, std::atomic<std::int32_t>* turns);

  /// Zeros the gradients; before any key block's task.
  void start(const Batch& batch, std::span<const TensorView> d_captures) const;

  CaptureTurn of(const BlockPlace& place) const;

 private:
  bool wanted_;
  bool by_head_ = false;   // every element belongs to one query head
  bool by_batch_ = false;  // or to one sequence
  std::int64_t heads_kv_;
  std::atomic<std::int32_t>* turns_;
};

}  // namespace strobe::cpu
