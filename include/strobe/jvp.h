// SPDX-License-Identifier: Apache-2.0
// The forward-mode derivative of attention: a Jacobian-vector product (JVP) in the pass that computes the output.
#pragma once

#include "strobe/attention.h"

namespace strobe {

/// The tensors of a JVP. q, k, v and o share one dtype: float32, float16 or bfloat16; lse is float32. A tangent has its
/// tensor's shape and dtype, and strides of its own. A tangent of q, k or v that is not given is zero. Every element of
/// an output is written: rows that no sequence uses, and queries that see no key, have tangents of 0. Outputs must not
/// overlap any other tensor. Modifiers are constants: they have no tangents. @experimental
struct JvpArguments {
  ConstTensorView q{};
  ConstTensorView k{};
  ConstTensorView v{};
  ConstTensorView q_tangent{};  // optional, as the next two
  ConstTensorView k_tangent{};
  ConstTensorView v_tangent{};
  TensorView o{};    // optional: what forward() gives
  TensorView lse{};  // optional, likewise
  TensorView o_tangent{};
  TensorView lse_tangent{};  // optional
  Sequences sequences{};     // not leftpad_k and cache_batch_idx
  ScoreModifiers modifiers{};
  RandomState random{};  // read when options.dropout is not 0: the mask is a constant, too
};

/// O' and LSE' for tangents Q', K' and V', and O and LSE on the way. With P = softmax(S) and S = scale * Q K^T,
///
///   S' = scale * (Q' K^T + Q K'^T)        times 1 - tanh^2 under softcap
///   LSE' = rowsum(P S')
///   O' = P V' + (P S') V - LSE' O
///
/// by one online softmax over the keys: O, P V' + (P S') V and rowsum(P S') are rescaled together.
/// options.row_invariant is ignored. The CPU engine alone has it: it is unsupported on a GPU.
///
/// Source: Lu and Song, "Simplifying, Stabilizing and Scaling Continuous-Time Consistency Models" (2024), whose JVP of
/// FlashAttention is one pass, too. @experimental
STROBE_API Status jvp(const JvpArguments& arguments, const AttentionOptions& options = {},
                      const Execution& execution = {});

}  // namespace strobe
