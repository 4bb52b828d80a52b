// SPDX-License-Identifier: Apache-2.0
// One query row of the backward: P, D and dS of its visible keys, and the bounds of all three.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/bound/forward_row.h"
#include "reference/bound/rounding.h"
#include "reference/bound/scores.h"

namespace strobe::reference {

/// In the order of Scores::keys. What feeds a second product is rounded as the engine rounds it.
struct RowGradients {
  std::vector<Bounded> probability;  // P after dropout: dV sums it
  std::vector<Bounded> d_text;       // dS, of what the text made of the scores; empty without one
  std::vector<Bounded> d_score;      // of the score that the bias joins
  std::vector<Bounded> d_product;    // dS times the slope of the softcap: dQ and dK sum it
};

/// D = rowsum(dO * O) - dLSE, from the O that the engine was given.
Bounded row_correction(const ForwardRow& row, const double* d_o, double d_lse, const ArithmeticModel& model);

/// `d_o` is one row [head_dim_v]; `v_transposed` is [head_dim_v, seqlen_k].
RowGradients row_gradients(const Scores& scores, const ForwardRow& row, const Bounded& correction, const double* d_o,
                           const std::vector<double>& v_transposed, const Head& head);

/// What the row adds to the sink's gradient: -exp(sink - LSE) D.
Bounded sink_gradient(double sink, const ForwardRow& row, const Bounded& correction, const ArithmeticModel& model);

}  // namespace strobe::reference
