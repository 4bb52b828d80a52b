// SPDX-License-Identifier: Apache-2.0
// Scores and masks as a text says them: `score + slope[head] * (k - q)`, `k <= q && document[k] == document[q]`. The
// grammar, the names and what can be combined: docs/expressions.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strobe/export.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

namespace expression {
/// What texts become: an opaque type. @experimental
class Formula;
}  // namespace expression

/// A tensor that texts read by its name, with an index for each dimension. @experimental
struct CaptureType {
  std::string name{};            // letters, digits and underscores, none of the language's own names
  DType dtype = DType::float32;  // or float16, bfloat16: reals; int32, int64 in 32 bits: integers; uint8: booleans
  int rank = 0;                  // from 0 to 4; of rank 0 the tensor of a call has one element in one dimension

  bool operator==(const CaptureType&) const = default;
};

/// What becomes of a score and which keys a query sees, as texts say. Immutable; copies share what was parsed. Calls
/// with equal texts and captures share plans and kernels, whatever the captures' shapes and contents. @experimental
class STROBE_API ScoreFunction {
 public:
  /// `score` gives the new score from `score`, the scaled one after softcap, ALiBi and bias, in natural units; `mask`
  /// whether query `q` sees key `k`, beside every other mask. An empty text is left out; one must be given. Errors name
  /// the column and what is accepted.
  static Result<ScoreFunction> parse(std::string_view score, std::string_view mask = {},
                                     std::vector<CaptureType> captures = {});

  const std::vector<CaptureType>& captures() const;

  /// The simplified texts, the derivatives by the score and by every capture, and how their gradients are summed.
  std::string explain() const;

  /// Whether the score depends on what it reads of captures()[capture], so that a backward may give that gradient.
  bool has_gradient(int capture) const;

  /// Whether a score of -inf stays one, as long as what is read is finite: the text multiplies it by a positive number
  /// and adds the rest. Of others, such as tanh(score), only a mask hides a key.
  bool keeps_hidden() const;

  /// What engines make of the texts.
  const std::shared_ptr<const expression::Formula>& formula() const { return formula_; }

 private:
  explicit ScoreFunction(std::shared_ptr<const expression::Formula> formula) : formula_(std::move(formula)) {}

  std::shared_ptr<const expression::Formula> formula_;
};

}  // namespace strobe
