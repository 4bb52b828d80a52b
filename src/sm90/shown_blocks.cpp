// SPDX-License-Identifier: Apache-2.0
#include "sm90/shown_blocks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "call/arithmetic.h"
#include "call/visible_keys.h"
#include "expression/formula.h"
#include "expression/ranges.h"
#include "sm90/dealt_tiles.h"

namespace strobe::sm90 {
namespace {

using expression::Graph;
using expression::Id;
using expression::Variable;

constexpr expression::Variables kKnown =
    bit(Variable::q) | bit(Variable::k) | bit(Variable::q_len) | bit(Variable::k_len);

std::vector<Id> nodes_of_mask(const expression::Formula& formula) {
  return expression::reachable(formula.graph(), std::array{formula.mask()});
}

/// The mask over ranges of queries and keys.
class Mask {
 public:
  explicit Mask(const AttentionProblem& problem)
      : formula_(*problem.expression.formula), nodes_(nodes_of_mask(formula_)) {
    at(Variable::q_len) = expression::just(problem.seqlen_q);
    at(Variable::k_len) = expression::just(problem.seqlen_k);
  }

  bool may_show(const expression::Range& queries, const expression::Range& keys) {
    at(Variable::q) = queries;
    at(Variable::k) = keys;
    return expression::range_of(formula_.graph(), nodes_, formula_.mask(), tile_).high != 0;
  }

 private:
  expression::Range& at(Variable variable) { return tile_.variables[static_cast<std::size_t>(variable)]; }

  const expression::Formula& formula_;
  std::vector<Id> nodes_;
  expression::TileRanges tile_;
};

}  // namespace

bool walks_by_text(const ScoreRule& rule) { return rule.text.mask && rule.block_mask != 0; }

bool knows_shown_blocks(const AttentionProblem& problem, const forward::Config& config) {
  if (!walks_by_text(config.rule) || config.rule.varlen) return false;
  const expression::Formula& formula = *problem.expression.formula;
  const auto reads_capture = [&](Id id) { return formula.graph()[id].op == expression::Op::load; };
  return (formula.mask_variables() & ~kKnown) == 0 && std::ranges::none_of(nodes_of_mask(formula), reads_capture);
}

std::vector<double> shown_blocks(const AttentionProblem& problem, const forward::Config& config) {
  constexpr std::int64_t kMostLooks = 1 << 14;
  const std::int64_t tiles = m_tiles_of(problem, config);
  const std::int64_t blocks = ceil_div<std::int64_t>(problem.seqlen_k, config.block_n);
  const std::int64_t together = std::max<std::int64_t>(1, ceil_div(tiles * blocks, kMostLooks));
  const std::int64_t keys = together * config.block_n;
  const VisibleKeys visible = visible_keys(problem);
  Mask mask(problem);
  std::vector<double> shown(static_cast<std::size_t>(tiles));
  for (std::int64_t m = 0; m < tiles; ++m) {
    const std::int64_t last_row = std::min<std::int64_t>((m + 1) * block_m(config), problem.seqlen_q) - 1;
    const expression::Range queries{m * block_m(config), last_row};
    const std::int64_t end = visible.end(last_row);
    for (std::int64_t key = visible.begin(queries.low) / keys * keys; key < end; key += keys) {
      const std::int64_t last_key = std::min(key + keys, end) - 1;
      if (mask.may_show(queries, {key, last_key})) shown[static_cast<std::size_t>(m)] += static_cast<double>(together);
    }
  }
  return shown;
}

}  // namespace strobe::sm90
