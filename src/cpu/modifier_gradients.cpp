// SPDX-License-Identifier: Apache-2.0
#include "cpu/modifier_gradients.h"

#include <algorithm>
#include <array>
#include <new>

#include "call/checked.h"
#include "cpu/workers.h"

namespace strobe::cpu {

bool writes_bias_gradient_alone(const AttentionProblem& problem) {
  const ModifierShape& shape = problem.modifiers;
  // A bias of extent 1 has elements even where the batch has none.
  const auto unshared = [](bool per_item, std::int64_t items) { return per_item ? items > 1 : items == 1; };
  return unshared(shape.bias_per_batch, problem.batch) && unshared(shape.bias_per_head, problem.heads_q) &&
         !problem.has_seqused_q && !problem.has_seqused_k;
}

void clear_bias_gradient(const Call& call, const TensorView& d_bias) {
  if (!d_bias.given() || writes_bias_gradient_alone(call.problem)) return;
  const auto& shape = d_bias.shape;
  const auto& strides = d_bias.strides;
  for_each_task(shape[0] * shape[1] * shape[2], call.plan.threads, call.parallel_for, [&](std::int64_t row, int) {
    const std::int64_t plane = row / shape[2];
    const std::int64_t offset =
        plane / shape[1] * strides[0] + plane % shape[1] * strides[1] + row % shape[2] * strides[2];
    std::fill_n(static_cast<float*>(d_bias.data) + offset, shape[3], 0.0F);
  });
}

BiasTurns::BiasTurns(const AttentionProblem& problem, const Batch& batch, std::atomic<std::int32_t>* turns)
    : problem_(problem),
      batch_(batch),
      turns_(problem.wants_d_bias && !writes_bias_gradient_alone(problem) ? turns : nullptr) {}

void BiasTurns::start() const {
  if (turns_ == nullptr) return;
  const std::int64_t tasks = (Checked(batch_.key_blocks) * problem_.heads_kv).value();
  for (std::int64_t index = 0; index < tasks; ++index) {
    new (turns_ + index) std::atomic<std::int32_t>(0);
  }
}

BiasTurn BiasTurns::of(const BlockPlace& place) const {
  if (turns_ == nullptr) return {.alone = true};
  return {.before = before(place), .own = at(place.sequence, place.head, place.block)};
}

std::atomic<std::int32_t>* BiasTurns::at(const Sequence& sequence, std::int64_t head_kv, std::int64_t block) const {
  return turns_ + (sequence.first_key_block + block) * problem_.heads_kv + head_kv;
}

/// The task before this one among those that share its bias; tasks are handed out in this order, so it has begun.
const std::atomic<std::int32_t>* BiasTurns::before(const BlockPlace& place) const {
  const ModifierShape& shape = problem_.modifiers;
  if (!shape.bias_per_head && place.head > 0) return at(place.sequence, place.head - 1, place.block);
  if (shape.bias_per_batch) return nullptr;
  const std::int64_t head = shape.bias_per_head ? place.head : problem_.heads_kv - 1;
  for (const Sequence* other = &place.sequence; other-- != batch_.sequences.data();) {
    const Sequence& next = other[1];
    if (place.block < next.first_key_block - other->first_key_block) return at(*other, head, place.block);
  }
  return nullptr;
}

namespace {

/// Every element, whatever the strides.
void clear(const TensorView& tensor) {
  std::array<std::int64_t, kMaxRank> extents{1, 1, 1, 1};
  std::array<std::int64_t, kMaxRank> strides{};
  std::copy_n(tensor.shape.begin(), tensor.rank, extents.begin());
  std::copy_n(tensor.strides.begin(), tensor.rank, strides.begin());
  auto* const data = static_cast<float*>(tensor.data);
  for (std::int64_t a = 0; a < extents[0]; ++a) {
    for (std::int64_t b = 0; b < extents[1]; ++b) {
      for (std::int64_t c = 0; c < extents[2]; ++c) {
        float* const row = data + a * strides[0] + b * strides[1] + c * strides[2];
        for (std::int64_t i = 0; i < extents[3]; ++i) row[i * strides[3]] = 0.0F;
      }
    }
  }
}

}  // namespace

CaptureTurns::CaptureTurns(const CallPlan& plan, const AttentionProblem& problem, std::atomic<std::int32_t>* turns)
    : wanted_(problem.expression.gradients != 0), heads_kv_(problem.heads_kv), turns_(turns) {
  if (!wanted_) return;
  const CallExpressions& call = *plan.expressions;
  const expression::Graph& graph = call.formula->graph();
  const auto all_read_by = [&](expression::Variable variable) {
    return std::ranges::all_of(call.reads, [&](const expression::Read& read) {
      return std::ranges::any_of(graph[read.load].inputs(), [&](expression::Id index) {
        return graph[index].op == expression::Op::variable && graph[index].which == static_cast<int>(variable);
      });
    });
  };
  by_head_ = all_read_by(expression::Variable::head) || all_read_by(expression::Variable::head_kv);
  by_batch_ = all_read_by(expression::Variable::batch);
}

void CaptureTurns::start(const Batch& batch, std::span<const TensorView> d_captures) const {
  if (!wanted_) return;
  for (const TensorView& gradient : d_captures) {
    if (gradient.given()) clear(gradient);
  }
  for (std::int64_t index = 0; index < batch.key_blocks * heads_kv_; ++index) {
    new (turns_ + index) std::atomic<std::int32_t>(0);
  }
}

CaptureTurn CaptureTurns::of(const BlockPlace& place) const {
  if (!wanted_) return {};
  // In the order in which tasks are handed out: blocks of keys one after another, heads side by side.
  const std::int64_t index = (place.sequence.first_key_block + place.block) * heads_kv_ + place.head;
  const std::int64_t before = index - (by_head_ ? heads_kv_ : 1);
  const std::int64_t first = by_batch_ ? place.sequence.first_key_block * heads_kv_ : 0;
  return {.before = before < first ? nullptr : turns_ + before, .own = turns_ + index};
}

}  // namespace strobe::cpu
