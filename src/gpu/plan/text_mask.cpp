// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/text_mask.h"

#include <utility>

#include "expression/position_mask.h"

namespace strobe::gpu {

bool knows_text_mask(const AttentionProblem& problem) { return problem.expression.formula->mask_is_of_positions(); }

MayShow known_text_mask(const AttentionProblem& problem) {
  expression::MaskRange mask =
      expression::position_mask(problem.expression.formula, problem.seqlen_q, problem.seqlen_k);
  return [mask = std::move(mask)](const expression::Range& queries, const expression::Range& keys) {
    return mask(queries, keys).high != 0;
  };
}

}  // namespace strobe::gpu
