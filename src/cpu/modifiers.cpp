// SPDX-License-Identifier: Apache-2.0
#include "cpu/modifiers.h"

namespace strobe::cpu {
namespace {

/// The stride along an axis of extent 1 is never stepped.
std::int64_t step(const ConstTensorView& view, std::size_t axis) {
  return view.shape[axis] > 1 ? view.strides[axis] : 0;
}

}  // namespace

BlockMask GroupModifiers::blocks(std::int64_t batch, std::int64_t group) const {
  const ConstTensorView& mask = modifiers_.block_mask;
  if (!mask.given()) return {};
  return {
      .data = static_cast<const std::uint8_t*>(mask.data) + batch * step(mask, 0) + first_head(group) * step(mask, 1),
      .row_stride = step(mask, 2),
      .head_stride = step(mask, 1),
      .size = modifiers_.block_size};
}

template <class Pointer>
GroupRows<Pointer> GroupModifiers::bias_rows(Pointer data, const ConstTensorView& view, std::int64_t batch,
                                             std::int64_t group) const {
  const GroupRows<Pointer> rows{data, step(view, 2), step(view, 1), heads_per_group(problem_)};
  return rows.from_column(view.dtype, batch * step(view, 0) + first_head(group) * step(view, 1));
}

ScoreTerms GroupModifiers::terms(std::int64_t batch, std::int64_t group) const {
  ScoreTerms terms;
  const ConstTensorView& slopes = modifiers_.alibi_slopes;
  if (slopes.given()) {
    const std::int64_t offset = problem_.modifiers.alibi_per_batch ? batch * step(slopes, 0) : 0;
    terms.alibi_slopes = static_cast<const float*>(slopes.data) + offset + first_head(group);
  }
  if (modifiers_.bias.given()) {
    terms.bias = bias_rows(modifiers_.bias.data, modifiers_.bias, batch, group);
    terms.bias_dtype = modifiers_.bias.dtype;
  }
  return terms;
}

GroupDropout GroupModifiers::dropout(const Sequence& sequence, std::int64_t batch, std::int64_t group) const {
  const DropoutKey key = dropout_key(problem_.dropout, random_.seed, random_.offset);
  return {.key = key,
          .head = dropout_head(random_, problem_.heads_q, batch, first_head(group)),
          .first_position = sequence.q.offset,
          .first_key = sequence.k.offset,
          .given = key.threshold > 0};
}

const float* GroupModifiers::sinks(std::int64_t group) const {
  if (!modifiers_.sink.given()) return nullptr;
  return static_cast<const float*>(modifiers_.sink.data) + first_head(group);
}

ExpressionTask GroupModifiers::expression(const CallExpressions* call, const Sequence& sequence, std::int64_t batch,
                                          std::int64_t group, std::byte* memory) const {
  if (call == nullptr) return {};
  const auto number = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  return {.call = call,
          .captures = modifiers_.captures.data(),
          .memory = memory,
          .batch = number(batch),
          .head = number(first_head(group)),
          .head_kv = number(first_head(group) / heads_per_key_head(problem_)),
          .q_len = number(sequence.q.length),
          .k_len = number(sequence.k.length),
          .first_position = number(sequence.q.offset),
          .first_key = number(sequence.k.offset)};
}

GroupRows<float*> GroupModifiers::d_bias(const TensorView& d_bias, std::int64_t batch, std::int64_t group) const {
  if (!d_bias.given()) return {};
  return bias_rows(static_cast<float*>(d_bias.data), d_bias, batch, group);
}

}  // namespace strobe::cpu
