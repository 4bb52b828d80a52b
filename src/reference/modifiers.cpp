// SPDX-License-Identifier: Apache-2.0
#include "reference/modifiers.h"

#include "call/random_state.h"

namespace strobe::reference {

HeadModifiers::HeadModifiers(const ScoreModifiers& given, const AttentionOptions& options, const RandomState& random,
                             const SequenceRows& rows, std::int64_t head, std::int64_t heads_q, std::int64_t heads_kv)
    : given_(given),
      sequence_(rows.sequence),
      position_q_(rows.position_q),
      position_k_(rows.position_k),
      head_(head),
      dropout_(dropout_key(options.dropout, numbers_of(random, options.dropout).seed,
                           numbers_of(random, options.dropout).offset)),
      dropout_head_(dropout_head(random, heads_q, rows.sequence, head)),
      text_(given, rows, head, head / (heads_q / heads_kv)) {}

std::int64_t HeadModifiers::shared_offset(const ConstTensorView& view) const {
  return (view.shape[0] == 1 ? 0 : sequence_ * view.strides[0]) + (view.shape[1] == 1 ? 0 : head_ * view.strides[1]);
}

double HeadModifiers::slope() const {
  const ConstTensorView& slopes = given_.alibi_slopes;
  const std::int64_t batch_offset = slopes.rank == 2 ? sequence_ * slopes.strides[0] : 0;
  return load(slopes, batch_offset + head_ * slopes.strides[slopes.rank - 1]);
}

double HeadModifiers::bias(std::int64_t query, std::int64_t key) const {
  const ConstTensorView& bias = given_.bias;
  return load(bias, shared_offset(bias) + query * bias.strides[2] + key * bias.strides[3]);
}

std::optional<double> HeadModifiers::sink() const {
  if (!given_.sink.given()) return std::nullopt;
  return load(given_.sink, head_ * given_.sink.strides[0]);
}

bool HeadModifiers::shows_block(std::int64_t query_block, std::int64_t key_block) const {
  const ConstTensorView& mask = given_.block_mask;
  const std::int64_t offset = shared_offset(mask) + query_block * mask.strides[2] + key_block * mask.strides[3];
  return static_cast<const std::uint8_t*>(mask.data)[offset] != 0;
}

HeadModifiers HeadModifiers::with_tree(const ConstTensorView& tree_mask, std::int64_t first_q) const {
  HeadModifiers modifiers = *this;
  modifiers.tree_mask_ = tree_mask;
  modifiers.tree_offset_ = tree_mask.rank == 1 ? first_q : sequence_ * tree_mask.strides[0];
  return modifiers;
}

bool HeadModifiers::shows_node(std::int64_t query, std::int64_t node) const {
  const std::int64_t word = static_cast<const std::int64_t*>(tree_mask_.data)[tree_offset_ + query];
  return (static_cast<std::uint64_t>(word) >> node & 1U) != 0;
}

double HeadModifiers::dropout_factor(std::int64_t query, std::int64_t key) const {
  const auto row = static_cast<unsigned>(position_q_ + query);
  const auto column = static_cast<unsigned>(position_k_ + key);
  const PhiloxBlock block = philox(dropout_counter(dropout_, dropout_head_, row, column), dropout_.key);
  if (dropout_slice(block, row, column) < dropout_.threshold) return 0.0;
  return 256.0 / (256.0 - dropout_.threshold);
}

}  // namespace strobe::reference
