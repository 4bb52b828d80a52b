// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/text_mask.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "expression/formula.h"
#include "expression/ranges.h"

namespace strobe::gpu {

using expression::Id;
using expression::Range;
using expression::Variable;

MayShow known_text_mask(const AttentionProblem& problem) {
  constexpr expression::Variables kKnown =
      bit(Variable::q) | bit(Variable::k) | bit(Variable::q_len) | bit(Variable::k_len);
  const auto formula = problem.expression.formula;
  if (formula == nullptr) return {};
  const std::vector<Id> nodes = expression::reachable(formula->graph(), std::array{formula->mask()});
  const auto reads_capture = [&](Id id) { return formula->graph()[id].op == expression::Op::load; };
  if ((formula->mask_variables() & ~kKnown) != 0 || std::ranges::any_of(nodes, reads_capture)) return {};
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
