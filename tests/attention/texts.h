// SPDX-License-Identifier: Apache-2.0
// Score and mask expressions of random cases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "random.h"
#include "strobe/expression.h"
#include "strobe/plan.h"

namespace strobe::test {

/// A tensor that the texts read.
struct CapturedTensor {
  CaptureType type;
  std::vector<std::int64_t> shape;
  std::int64_t largest = 0;  // integers are from 0 to this; reals are normal
  bool wants_gradient = false;
};

struct TextCase {
  std::string score;
  std::string mask;
  std::vector<CapturedTensor> captures;

  /// The function that the case's call is given.
  ScoreFunction function() const;
};

/// What the shapes of captures follow.
struct TextShape {
  std::int64_t batch, heads_q, heads_kv, rows_q, rows_k;
};

/// Texts that have every operation, pattern of indices and dtype of captures. Captures may be smaller than what indices
/// reach.
std::vector<TextCase> all_texts(const TextShape& shape);

/// Texts that are probabilities themselves, with gradients of all their captures.
std::vector<TextCase> unnormalized_texts(const TextShape& shape);

/// What a plan explains before the lines of its texts: what it has in common with a plan of options that say the same.
std::string explained_without_texts(const Plan& plan);

/// One of them; some gradients of its captures are wanted.
TextCase random_text(const TextShape& shape, Random& random);

}  // namespace strobe::test
