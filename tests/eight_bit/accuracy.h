// SPDX-License-Identifier: Apache-2.0
// The error of 8-bit attention against float32 attention on the same inputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "host_tensors.h"
#include "io/quantized.h"
#include "reference/eight_bit_inputs.h"

namespace strobe::test {

inline constexpr std::int64_t kHeadDim = 128;

class Accuracy {
 public:
  /// The last `queries` of the inputs' queries; 0: all.
  Accuracy(reference::EightBitInputs inputs, std::int64_t heads, std::int64_t seqlen, std::int64_t queries = 0,
           const AttentionOptions& options = {})
      : Accuracy(reference::make_eight_bit_inputs(inputs, seqlen, heads, kHeadDim, 1), heads, seqlen,
                 queries == 0 ? seqlen : queries, options) {}

  Accuracy(const reference::Needles& needles, std::int64_t heads)
      : Accuracy(needles.tensors, heads, needles.seqlen_k, needles.queries, {}) {
    needles_ = &needles;
  }

  /// Root mean square error of O.
  double rmse(const QuantizeOptions& options) {
    run(options);
    lse_rmse_ = rmse(lse_, exact_lse_);
    return rmse(o_, exact_);
  }

  /// The same over the root mean square of O.
  double relative_rmse(const QuantizeOptions& options) {
    return rmse(options) / rmse(exact_, io::make_tensor(DType::float32, exact_.shape));
  }

  /// Of O after rmse().
  double largest_error() const {
    const auto* a = floats_of(o_);
    const auto* e = floats_of(exact_);
    double largest = 0.0;
    for (std::size_t i = 0; i < io::element_count(o_); ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - static_cast<double>(e[i])));
    }
    return largest;
  }

  /// Null: on the inputs rounded to bfloat16.
  std::int64_t needles_found(const QuantizeOptions* options) {
    options == nullptr ? run_bfloat16() : run(*options);
    return reference::needles_found(*needles_, floats_of(o_), heads_, kHeadDim);
  }

  double lse_rmse() const { return lse_rmse_; }

  ConstTensorView q() const {
    const std::int64_t row = heads_ * kHeadDim;
    const auto rows = static_cast<std::int64_t>(tensors_.q.size()) / row;
    return tensor(tensors_.q.data() + (rows - queries_) * row, {1, queries_, heads_, kHeadDim});
  }
  ConstTensorView k() const { return tensor(tensors_.k.data(), {1, seqlen_, heads_, kHeadDim}); }
  ConstTensorView v() const { return tensor(tensors_.v.data(), {1, seqlen_, heads_, kHeadDim}); }

 private:
  Accuracy(reference::EightBitTensors tensors, std::int64_t heads, std::int64_t seqlen, std::int64_t queries,
           const AttentionOptions& options)
      : heads_(heads), seqlen_(seqlen), queries_(queries), options_(options), tensors_(std::move(tensors)) {
    // float32 attention is off by less than 1e-6, a thousandth of what is measured.
    run({.q = q(), .k = k(), .v = v()}, exact_, exact_lse_);
  }

  void run(ForwardArguments arguments, io::HostTensor& o, io::HostTensor& lse) const {
    arguments.o = io::view(o);
    arguments.lse = io::view(lse);
    const Status status = forward(arguments, options_);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  void run(const QuantizeOptions& options) {
    const Result<io::Quantized> operands = io::quantized(q(), k(), v(), options);
    ASSERT_TRUE(operands.ok());
    run(operands->arguments(), o_, lse_);
  }

  void run_bfloat16() {
    const auto rounded = [](const ConstTensorView& from) {
      io::HostTensor wide =
          io::make_tensor(DType::float32, {from.shape[0], from.shape[1], from.shape[2], from.shape[3]});
      std::copy_n(static_cast<const float*>(from.data), io::element_count(wide),
                  reinterpret_cast<float*>(wide.bytes.data()));
      return converted(wide, DType::bfloat16);
    };
    const io::HostTensor q16 = rounded(q());
    const io::HostTensor k16 = rounded(k());
    const io::HostTensor v16 = rounded(v());
    io::HostTensor o = io::make_tensor(DType::bfloat16, o_.shape);
    run({.q = io::view(q16), .k = io::view(k16), .v = io::view(v16)}, o, lse_);
    o_ = converted(o, DType::float32);
  }

  static double rmse(const io::HostTensor& actual, const io::HostTensor& expected) {
    double sum = 0.0;
    const std::size_t count = io::element_count(actual);
    for (std::size_t i = 0; i < count; ++i) {
      const double error = static_cast<double>(floats_of(actual)[i]) - static_cast<double>(floats_of(expected)[i]);
      sum += error * error;
    }
    return std::sqrt(sum / static_cast<double>(count));
  }

  std::int64_t heads_, seqlen_, queries_;
  AttentionOptions options_;
  reference::EightBitTensors tensors_;
  const reference::Needles* needles_ = nullptr;
  io::HostTensor exact_ = io::make_tensor(DType::float32, {1, queries_, heads_, kHeadDim});
  io::HostTensor exact_lse_ = io::make_tensor(DType::float32, {1, heads_, queries_});
  io::HostTensor o_ = exact_, lse_ = exact_lse_;
  double lse_rmse_ = 0.0;
};

/// Names of parametrised tests.
inline std::string inputs_name(const testing::TestParamInfo<reference::EightBitInputs>& info) {
  std::string name = reference::name_of(info.param);
  std::erase(name, ' ');
  return name;
}

}  // namespace strobe::test
