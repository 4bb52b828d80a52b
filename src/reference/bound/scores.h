// SPDX-License-Identifier: Apache-2.0
// One row of S = mask(text(softcap(scale * Q K^T) + modifiers)) and how far float32 arithmetic may be from it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/bound/reference.h"
#include "reference/bound/visibility.h"
#include "reference/tensors.h"

namespace strobe::reference {

/// One query head of one sequence: what all its rows share.
struct Head {
  const AttentionOptions& options;
  const ArithmeticModel& model;
  SequenceRows rows;
  HeadModifiers modifiers;
};

/// The scores of one query, for its visible keys only: what a masked key holds is never looked at.
struct Scores {
  std::vector<KeyRange> ranges;    // the visible keys
  std::vector<std::int64_t> keys;  // their positions, one by one, as all that follows
  std::vector<double> value;       // s, after softcap, ALiBi, bias and the text
  std::vector<double> error;       // bound on |computed s - s|
  double products = 0.0;           // that each dot product sums: head_dim
  std::vector<double> slope;       // derivative of the softcap, 1 without it
  std::vector<double> slope_error;
  std::vector<TextScore> text;  // what the text made of `given`; empty without one
  std::vector<expression::Bounded> given;
  std::vector<double> dropout;  // what dropout multiplies the probability by, 1 without it
  std::optional<double> sink;   // the logit that joins the row
  bool normalized = true;       // else the scores are the probabilities; one of -inf is 0
  // 8-bit operands: the logarithm of what rounding a probability may change of exp(s); else empty.
  std::vector<double> rounding_log;
};

/// scale, or 1 / sqrt(head_dim) where it is not given.
double scale_of(const AttentionOptions& options, std::int64_t head_dim);

/// What the products of Q and K of a sequence that has `keys` keys are multiplied by, and in how many roundings that is
/// computed.
double product_scale(const AttentionOptions& options, std::int64_t head_dim, std::int64_t keys);
double product_scale_roundings(const AttentionOptions& options);

/// `q` is one row [head_dim]; `k_transposed` is [head_dim, seqlen_k].
Scores scores_of(std::int64_t query, const double* q, const std::vector<double>& k_transposed, std::int64_t head_dim,
                 const Head& head);

/// products[j] = sum_c row[c] * transposed[c][j] for the keys in the ranges, one after another, and magnitudes[j] =
/// sum_c of their absolutes. `transposed` is [columns, seqlen_k].
void multiply_row(const double* row, const std::vector<double>& transposed, std::int64_t columns,
                  const std::vector<KeyRange>& ranges, std::int64_t seqlen_k, std::vector<double>& products,
                  std::vector<double>& magnitudes);

/// What multiply_row's products lose where factors below `smallest` are taken for zero: the sum of their magnitudes.
std::vector<double> lost_products(const double* row, const std::vector<double>& transposed, std::int64_t columns,
                                  const std::vector<KeyRange>& ranges, std::int64_t seqlen_k, double smallest);

}  // namespace strobe::reference
