// SPDX-License-Identifier: Apache-2.0
// Calls with score and mask expressions.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "expression/formula.h"
#include "gpu/plan/plan_problem.h"
#include "strobe/expression.h"

namespace strobe::test {

struct Text {
  const char* name;
  const char* score;
  const char* mask;
  std::vector<CaptureType> captures;
};

inline std::ostream& operator<<(std::ostream& out, const Text& text) { return out << text.name; }

inline AttentionProblem problem_with(const Text& text, std::int64_t seqlen = 4096, std::int64_t head_dim = 128) {
  AttentionProblem problem = problem_of(seqlen, head_dim, head_dim);
  problem.expression.formula = ScoreFunction::parse(text.score, text.mask, text.captures)->formula();
  return problem;
}

inline const CaptureType kSlope{"slope", DType::float32, 1};
inline const CaptureType kDocument{"document", DType::int32, 1};

}  // namespace strobe::test
