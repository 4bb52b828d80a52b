// SPDX-License-Identifier: Apache-2.0
// One query row of the forward: softmax, its product with V, LSE, and the bounds of both.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/bound/rounding.h"
#include "reference/bound/scores.h"

namespace strobe::reference {

struct ForwardRow {
  bool empty = true;      // no visible key with a weight: O = 0, LSE = -inf, or the sink
  std::vector<double> o;  // [head_dim_v]
  std::vector<double> o_bound;
  double lse = 0.0;
  double lse_bound = 0.0;
};

/// P of the keys that the row sees, before dropout, as they take part in a sum over the row that is divided by the row
/// sum: its roundings are in the errors.
std::vector<Bounded> row_weights(const Scores& scores, const ArithmeticModel& model);

/// P of a key where nothing is normalized.
Bounded score_weight(const Scores& scores, std::size_t index);

/// What bringing a sink to base 2 may do to it: log2(e) and the product with it.
double sink_error(double sink, const ArithmeticModel& model);

/// `v` is one head, [seqlen_k, head_dim_v]; `output` is o's dtype.
ForwardRow forward_row(const Scores& scores, const std::vector<double>& v, std::int64_t head_dim_v, DType output,
                       const ArithmeticModel& model);

}  // namespace strobe::reference
