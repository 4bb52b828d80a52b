// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/text_mask.h"

#include <array>
#include <cstddef>
#include <vector>

#include "expression/formula.h"
#include "expression/ranges.h"

namespace strobe::gpu {

using expression::Id;
using expression::Range;
using expression::Variable;

bool knows_text_mask(const AttentionProblem& problem) { return problem.expression.formula->mask_is_of_positions(); }

MayShow known_text_mask(const AttentionProblem& problem) {
  const auto formula = problem.expression.formula;
  const std::vector<Id> nodes = expression::reachable(formula->graph(), std::array{formula->mask()});
  return [formula, nodes, q_len = problem.seqlen_q, k_len = problem.seqlen_k](const Range& queries, const Range& keys) {
    expression::TileRanges tile;
    const auto set = [&](Variable variable, const Range& range) {
      tile.variables[static_cast<std::size_t>(variable)] = range;
    };
    set(Variable::q, queries);
    set(Variable::k, keys);
    set(Variable::q_len, expression::just(q_len));
    set(Variable::k_len, expression::just(k_len));
    return expression::range_of(formula->graph(), nodes, formula->mask(), tile).high != 0;
  };
}

}  // namespace strobe::gpu
