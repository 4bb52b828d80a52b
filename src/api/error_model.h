// SPDX-License-Identifier: Apache-2.0
// What 8-bit attention is off by: an estimate of the root mean square error, and a bound on every element's. Both are
// derived in docs/eight-bit.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "call/problem.h"
#include "strobe/quantize.h"
#include "strobe/tensor.h"

namespace strobe::api {

/// Rounding noise of float8_e4m3 relative to the root mean square of what is rounded: 3 bits after the leading one.
inline constexpr double kFloat8Noise = 0.0265;

/// Rows of one head of Q, K or V as they are quantised: rotated, K centred.
struct HeadRows {
  std::int64_t count = 0;
  std::int64_t columns = 0;
  std::vector<float> elements;
  std::vector<double> square;   // of each row's norm
  std::vector<double> largest;  // magnitude of each row, rotated
  std::vector<double> largest_unrotated;

  std::span<const float> row(std::int64_t index) const {
    return std::span(elements).subspan(static_cast<std::size_t>(index * columns), static_cast<std::size_t>(columns));
  }
};

struct Errors {
  double mean_square = 0.0;  // of O
  double bound = 0.0;        // of any of its elements
};

/// One way to quantise, and the errors that it was found to have.
struct Candidate {
  QuantizeOptions options;
  Errors errors;
};

/// Finds the errors of all candidates, which rotate and centre alike, by reading q, k and v. `output` is O's dtype.
void measure(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
             const AttentionProblem& problem, std::uint64_t seed, std::span<Candidate> candidates);

/// Takes the candidates' errors for tensors whose elements are independent and N(0, 1). There is no bound.
void assume_normal(const AttentionProblem& problem, std::span<Candidate> candidates);

/// Keys whose products the engines sum before they add them in float32.
std::int64_t keys_per_sum(DType element);

}  // namespace strobe::api
