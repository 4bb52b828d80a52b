// SPDX-License-Identifier: Apache-2.0
// Standard attention, the thing that Strobe replaces: S and P whole in memory, products by OpenBLAS or by plain loops
// (products.h).
#pragma once

#include "strobe/attention.h"

namespace strobe::bench {

/// S = scale Q K^T, P = softmax(S), O = P V, each written to and read back from memory: O(N^2) bytes per head at work.
/// Takes what strobe::forward takes on the CPU in batched layout; in bfloat16 and float16, S and P are rounded to the
/// input dtype as PyTorch's plain attention rounds them. Rejects (unsupported) what it does not compute.
Status standard_forward(const ForwardArguments& arguments, const AttentionOptions& options, int threads);

/// dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(dO O)), dQ = scale dS K, dK = scale dS^T Q, with P and dS stored.
Status standard_backward(const BackwardArguments& arguments, const AttentionOptions& options, int threads);

}  // namespace strobe::bench
