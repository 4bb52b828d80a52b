// SPDX-License-Identifier: Apache-2.0
// Score modifiers and dropout as one query head of one sequence meets them.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/math/philox.h"
#include "reference/tensors.h"
#include "reference/text.h"
#include "strobe/attention.h"

namespace strobe::reference {

class HeadModifiers {
 public:
  /// Head `head` of `heads_q`, which reads one of `heads_kv` key heads, in the sequence of `rows`.
  HeadModifiers(const ScoreModifiers& given, const AttentionOptions& options, const RandomState& random,
                const SequenceRows& rows, std::int64_t head, std::int64_t heads_q, std::int64_t heads_kv);

  /// The same with ForwardArguments::tree_mask, which may not be given, for a sequence whose first query is row
  /// `first_q` of a packed q.
  HeadModifiers with_tree(const ConstTensorView& tree_mask, std::int64_t first_q) const;

  bool has_alibi() const { return given_.alibi_slopes.given(); }
  double slope() const;

  bool has_bias() const { return given_.bias.given(); }
  double bias(std::int64_t query, std::int64_t key) const;

  std::optional<double> sink() const;

  bool has_blocks() const { return given_.block_mask.given(); }
  std::int64_t block_size() const { return given_.block_size; }
  bool shows_block(std::int64_t query_block, std::int64_t key_block) const;

  bool has_tree() const { return tree_mask_.given(); }
  /// Whether a query sees key `node` of the sequence's last, as many as it has queries.
  bool shows_node(std::int64_t query, std::int64_t node) const;

  const HeadText& text() const { return text_; }

  bool has_dropout() const { return dropout_.threshold != 0; }
  double keep_probability() const { return static_cast<double>(dropout_.keep_probability()); }
  /// What dropout multiplies a probability by: 0, or one over the probability of being kept.
  double dropout_factor(std::int64_t query, std::int64_t key) const;

  std::int64_t head() const { return head_; }

 private:
  /// Where [batch or 1, heads_q or 1, ..] has this head, in elements.
  std::int64_t shared_offset(const ConstTensorView& view) const;

  const ScoreModifiers& given_;
  std::int64_t sequence_ = 0;    // of the batch
  std::int64_t position_q_ = 0;  // of its first query and key: dropout draws by positions in the whole sequence
  std::int64_t position_k_ = 0;
  std::int64_t head_ = 0;
  DropoutKey dropout_;
  unsigned dropout_head_ = 0;  // the head's number
  ConstTensorView tree_mask_;
  std::int64_t tree_offset_ = 0;  // of the first query
  HeadText text_;
};

}  // namespace strobe::reference
