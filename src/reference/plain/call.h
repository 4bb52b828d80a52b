// SPDX-License-Identifier: Apache-2.0
// Plain attention of a whole call: every head of every sequence.
#pragma once

#include <vector>

#include "strobe/attention.h"
#include "strobe/jvp.h"

namespace strobe::reference::plain {

/// In the tensors' row-major order.
struct Output {
  std::vector<double> o;
  std::vector<double> lse;
  std::vector<double> max_logits;  // [batch, heads_q]
};

struct Tangents {
  std::vector<double> o;
  std::vector<double> lse;
};

/// d_bias and d_sink are empty where the call does not ask for them.
struct Gradients {
  std::vector<double> dq;
  std::vector<double> dk;
  std::vector<double> dv;
  std::vector<double> d_bias;
  std::vector<double> d_sink;
  std::vector<std::vector<double>> d_captures;  // empty where none is wanted
  std::vector<double> dqv;
};

/// What strobe::forward computes, of host tensors.
Output forward(const ForwardArguments& arguments, const AttentionOptions& options = {});

/// The tangents that strobe::jvp computes.
Tangents jvp(const JvpArguments& arguments, const AttentionOptions& options = {});

/// What strobe::backward computes. O and LSE are computed anew, not read.
Gradients backward(const BackwardArguments& arguments, const AttentionOptions& options = {});

}  // namespace strobe::reference::plain
