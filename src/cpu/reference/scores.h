// One row of S = mask(softcap(scale * Q K^T)) and how far float32 arithmetic may be from it.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/reference/reference.h"
#include "cpu/reference/sequences.h"

namespace strobe::reference {

/// Keys [begin, end) are visible; empty where begin >= end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end > begin ? end - begin : 0; }
};

KeyRange visible_keys(std::int64_t query, const SequenceRows& rows, const AttentionOptions& options);

/// The scores of one query, for its visible keys only: what a masked key holds is never looked at.
struct Scores {
  KeyRange keys;
  std::vector<double> value;  // s, after softcap
  std::vector<double> error;  // bound on |computed s - s|
  std::vector<double> slope;  // derivative of the softcap, 1 without it
  std::vector<double> slope_error;
};

/// scale, or 1 / sqrt(head_dim) where it is not given.
double scale_of(const AttentionOptions& options, std::int64_t head_dim);

/// `q` is one row [head_dim]; `k_transposed` is [head_dim, seqlen_k].
Scores scores_of(const double* q, const std::vector<double>& k_transposed, std::int64_t head_dim, KeyRange keys,
                 std::int64_t seqlen_k, const AttentionOptions& options, const ArithmeticModel& model);

/// products[j] = sum_c row[c] * transposed[c][j] for the keys in range, and magnitudes[j] = sum_c of their absolutes.
void multiply_row(const double* row, const std::vector<double>& transposed, std::int64_t columns, KeyRange keys,
                  std::int64_t seqlen_k, std::vector<double>& products, std::vector<double>& magnitudes);

}  // namespace strobe::reference
