// SPDX-License-Identifier: Apache-2.0
// Attention and its gradients in float64, as the equations say them: to learn from, and to check what is faster.
//
// Source: Dao et al., "FlashAttention" (2022), section 2.2 and appendix B, whose numbers the equations have. One query
// head of one sequence at a time: Q is seqlen_q x head_dim, K is seqlen_k x head_dim, V is seqlen_k x head_dim_v.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "reference/modifiers.h"
#include "strobe/attention.h"

namespace strobe::reference::plain {

/// Row-major.
struct Matrix {
  std::int64_t rows;
  std::int64_t columns;
  std::vector<double> values = std::vector<double>(static_cast<std::size_t>(rows * columns), 0.0);

  double& operator()(std::int64_t row, std::int64_t column) { return values[row * columns + column]; }
  double operator()(std::int64_t row, std::int64_t column) const { return values[row * columns + column]; }
};

/// Positions of the first query and the first key of a part of a sequence, in the whole of it.
struct PartPositions {
  std::int64_t q = 0;
  std::int64_t k = 0;
};

struct Head {
  Matrix q;
  Matrix k;  // of the key head that this query head reads
  Matrix v;
  double scale = 1.0;
  const AttentionOptions& options;
  HeadModifiers modifiers;            // ALiBi, bias, sink, block mask and dropout
  std::optional<PartPositions> part;  // none: the sequence is whole
  Matrix qv{0, 0};                    // seqlen_q x head_dim_v, whose products with V join those of Q and K; or empty
};

struct HeadOutput {
  Matrix o;
  std::vector<double> lse;  // a row that sees no key has -inf
  double max_logit = -std::numeric_limits<double>::infinity();
};

/// Tangents of a head's inputs.
struct HeadTangents {
  Matrix q;
  Matrix k;
  Matrix v;
};

/// O' and LSE'; 0 for a row that sees no key.
struct OutputTangents {
  Matrix o;
  std::vector<double> lse;
};

/// What a pair of a query and a key gives to the gradient of an element of a capture.
struct CaptureGradient {
  int capture;
  std::int64_t element;  // row-major
  double value;
};

struct HeadGradients {
  Matrix dq;
  Matrix dk;
  Matrix dv;
  Matrix d_bias;  // seqlen_q x seqlen_k
  double d_sink = 0.0;
  std::vector<CaptureGradient> d_captures;
  Matrix dqv;
};

/// O = softmax(S) V and LSE.
HeadOutput forward(const Head& head);

/// The derivative of forward() in the direction of the tangents: equations in strobe/jvp.h.
OutputTangents jvp(const Head& head, const HeadOutput& output, const HeadTangents& tangents);

/// `d_o` and `d_lse` are the gradients of the loss with respect to O and LSE.
HeadGradients backward(const Head& head, const HeadOutput& output, const Matrix& d_o, const std::vector<double>& d_lse,
                       bool wants_d_captures = false);

}  // namespace strobe::reference::plain
