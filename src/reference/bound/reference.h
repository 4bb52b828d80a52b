// SPDX-License-Identifier: Apache-2.0
// Attention and its gradients in float64 with the error that an engine's float32 arithmetic may make in every element.
// Derivation: docs/accuracy.md. The equations without the errors: reference/plain/attention.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/tensors.h"
#include "strobe/attention.h"
#include "strobe/jvp.h"

namespace strobe::reference {

/// The roundings of an engine. These are properties that the engine guarantees, never tolerances: the bound follows
/// from them and from the data alone.
struct ArithmeticModel {
  double unit_roundoff = 0x1p-24;        // u: one float32 operation; 2^-23 where accumulators truncate (tensor cores)
  double product_error = 0.0;            // relative error of a product that a sum takes, besides: of factors in parts
  double exp2_error = 0x1p-22;           // relative error of exp2, its argument taken as exact: 2 ulp
  double log_error = 0x1p-21;            // relative error of the logarithm in LSE: 4 ulp
  double log_absolute_error = 0.0;       // and absolute, where the logarithm's argument is near 1
  double tanh_error = 0x1p-21;           // relative error of softcap's tanh: 4 ulp
  double tanh_absolute_error = 0.0;      // and absolute, where tanh is formed as a difference
  double underflow = 0x1p-126;           // float32 results below this may be flushed to zero
  double smallest_input = 0.0;           // factors of smaller magnitude may be taken for zero
  double maximum_slack = 0.0;            // what is subtracted for a row's maximum may be less than it by so much
  DType probabilities = DType::float32;  // what P and dS are rounded to before they are multiplied by V, dO, K and Q
  DType passed_probabilities = DType::float32;  // what P, times passed_scale, is rounded to first
  double passed_scale = 1.0;                    // a power of two
  // P and dS are rounded as they are without dropout's 1 / keep, which the sums are multiplied with in the end.
  bool keep_joins_sums = false;
  // LSE and D may join the sums of S and dP in so many parts, instead of being subtracted from what was summed; 0:
  // never.
  double joining_parts = 0.0;
  // K and V in 8 bits are operands as they are, and their scales join scores, probabilities and O; else they are
  // rounded to q's dtype first.
  bool stored_operands = false;
  std::int64_t block_n = 16;  // keys per tile, at least: bounds how often a running maximum is replaced
};

/// One tensor, row-major: its float64 value and how far each element of an engine's result may be from it.
/// The bound is infinite where the result may overflow its dtype, or where nothing can be promised.
struct BoundedTensor {
  std::vector<double> value;
  std::vector<double> bound;
};

/// `count` zeros, known exactly.
inline BoundedTensor zeros(std::int64_t count) {
  const auto elements = static_cast<std::size_t>(count);
  return {std::vector<double>(elements, 0.0), std::vector<double>(elements, 0.0)};
}

struct ForwardResult {
  BoundedTensor o;    // in o's shape
  BoundedTensor lse;  // [batch, heads_q, seqlen_q], packed [heads_q, total_q]; whether or not the call asks for it
  BoundedTensor max_logits;  // [batch, heads_q], likewise
};

struct BackwardResult {
  BoundedTensor dq;
  BoundedTensor dk;
  BoundedTensor dv;
  BoundedTensor d_bias;                   // in d_bias's shape; empty where the call does not ask for it
  BoundedTensor d_sink;                   // [heads_q]; empty where the call does not ask for it
  std::vector<BoundedTensor> d_captures;  // in their shapes; empty those that the call does not ask for
  BoundedTensor dqv;                      // empty where the call has no qv
};

/// O = dropout(softmax(mask(softcap(scale * Q K^T) + modifiers))) V, LSE and the largest scores, of a call that
/// strobe::forward accepts with host tensors. The data of outputs is not read. O(seqlen_q * seqlen_k) time, O(seqlen)
/// memory per head. `threads`: 0 takes one per hardware thread.
ForwardResult forward(const ForwardArguments& arguments, const AttentionOptions& options = {},
                      const ArithmeticModel& model = {}, int threads = 0);

/// The gradients, from float64 O and LSE of its own: the data of o and lse is not read, and the bound allows for an
/// engine that was given o and lse within the forward's bound.
BackwardResult backward(const BackwardArguments& arguments, const AttentionOptions& options = {},
                        const ArithmeticModel& model = {}, int threads = 0);

struct JvpResult {
  BoundedTensor o_tangent;    // in o's shape
  BoundedTensor lse_tangent;  // in lse's layout, whether or not the call asks for it
};

/// O' and LSE' of a call that strobe::jvp accepts with host tensors; time and memory are the forward's.
JvpResult jvp(const JvpArguments& arguments, const AttentionOptions& options = {}, const ArithmeticModel& model = {},
              int threads = 0);

/// Where a result is worst.
struct WorstElement {
  double ratio = 0.0;       // |actual - expected| / bound; above 1 the result is wrong
  std::int64_t index = -1;  // row-major; -1: no element
  double actual = 0.0;
  double expected = 0.0;
  double bound = 0.0;
};

/// The element with the largest |actual - expected| / bound. Where NaN or an infinity is expected, exactly that must be
/// there; where it is not expected, NaN has an infinite ratio. A bound of 0 demands equality.
WorstElement worst_element(const ConstTensorView& actual, const BoundedTensor& expected);

/// "element [1, 0, 2, 5] is 0.51, expected 0.5 within 0.001 (ratio 10)", for a tensor of `actual`'s shape.
std::string describe(const WorstElement& worst, const ConstTensorView& actual);

/// sqrt(mean((actual - expected)^2)) over all elements; 0 for an empty tensor.
double root_mean_square_error(const ConstTensorView& actual, const BoundedTensor& expected);

}  // namespace strobe::reference
