// SPDX-License-Identifier: Apache-2.0
// The texts of a call in float64, as one query head of one sequence meets them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "expression/evaluate.h"
#include "expression/formula.h"
#include "reference/tensors.h"
#include "strobe/attention.h"

namespace strobe::reference {

/// What a text makes of a score, and the derivative by it.
struct TextScore {
  expression::Bounded value;
  expression::Bounded slope{1.0, 0.0};
};

/// A real element that a score reads, and the score's derivative by it. Elements outside of a capture are left out.
struct TextRead {
  int capture = 0;
  std::int64_t element = 0;  // row-major
  expression::Bounded derivative;
};

class HeadText {
 public:
  HeadText(const ScoreModifiers& given, const SequenceRows& rows, std::int64_t head, std::int64_t head_kv);

  bool has_score() const { return formula_ != nullptr && formula_->has_score(); }
  bool has_mask() const { return formula_ != nullptr && formula_->has_mask(); }

  /// As written. A mask that compares reals is taken to come out as it does in float64.
  bool shows(std::int64_t query, std::int64_t key) const;

  /// `score` with the bound on its error. The value is the text's as written, the derivative the simplified one's.
  TextScore apply(std::int64_t query, std::int64_t key, const expression::Bounded& score) const;
  std::vector<TextRead> reads(std::int64_t query, std::int64_t key, const expression::Bounded& score) const;

 private:
  expression::Point point(std::int64_t query, std::int64_t key, const expression::Bounded& score) const;
  double element(int capture, std::span<const std::int64_t> indices) const;

  const ScoreModifiers& given_;
  std::shared_ptr<const expression::Formula> formula_;  // null: there is none
  SequenceRows rows_;
  std::int64_t head_ = 0;
  std::int64_t head_kv_ = 0;
  std::vector<expression::Id> written_mask_, written_score_, derived_;  // nodes in order
};

}  // namespace strobe::reference
