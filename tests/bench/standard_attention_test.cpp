// SPDX-License-Identifier: Apache-2.0
// Standard attention, the benchmark's and verify's peer, against float64.
#include "bench/standard_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "cli/files.h"
#include "reference/bound/reference.h"

namespace strobe::test {
namespace {

struct Tensors {
  Tensors(DType dtype, std::int64_t seqlen_q, std::int64_t seqlen_k)
      : q(normal_tensor(dtype, {2, seqlen_q, 4, 24}, 1)),
        k(normal_tensor(dtype, {2, seqlen_k, 2, 24}, 2)),
        v(normal_tensor(dtype, {2, seqlen_k, 2, 40}, 3)),
        d_o(normal_tensor(dtype, {2, seqlen_q, 4, 40}, 4)),
        d_lse(normal_tensor(DType::float32, {2, 4, seqlen_q}, 5)),
        o(io::make_tensor(dtype, {2, seqlen_q, 4, 40})),
        lse(io::make_tensor(DType::float32, {2, 4, seqlen_q})),
        dq(io::make_tensor(dtype, q.shape)),
        dk(io::make_tensor(dtype, k.shape)),
        dv(io::make_tensor(dtype, v.shape)) {}

  ForwardArguments forward() { return {.q = view(q), .k = view(k), .v = view(v), .o = view(o), .lse = view(lse)}; }
  BackwardArguments backward() {
    return {.q = view(q),
            .k = view(k),
            .v = view(v),
            .o = view(o),
            .lse = view(lse),
            .d_o = view(d_o),
            .d_lse = view(d_lse),
            .dq = view(dq),
            .dk = view(dk),
            .dv = view(dv)};
  }

  io::HostTensor q, k, v, d_o, d_lse, o, lse, dq, dk, dv;
};

std::vector<AttentionOptions> all_options() {
  return {
      {},
      {.scale = 0.7F},
      {.causal = CausalMask::bottom_right},
      {.causal = CausalMask::top_left, .softcap = 3.0F},
      {.window = {5, 9}},
      {.causal = CausalMask::bottom_right, .window = {12, -1}, .softcap = 20.0F},
  };
}

// In float32 it does what the bound describes, in another order: the same bound holds.
TEST(StandardAttention, Float32IsWithinTheBound) {
  for (const AttentionOptions& options : all_options()) {
    for (const int threads : {1, 3}) {
      Tensors tensors(DType::float32, 37, 53);
      ASSERT_TRUE(bench::standard_forward(tensors.forward(), options, threads).ok());
      ASSERT_TRUE(bench::standard_backward(tensors.backward(), options, threads).ok());
      const reference::ForwardResult forward = reference::forward(tensors.forward(), options);
      const reference::BackwardResult backward = reference::backward(tensors.backward(), options);
      expect_within_bound(tensors.o, forward.o, "O");
      expect_within_bound(tensors.lse, forward.lse, "LSE");
      expect_within_bound(tensors.dq, backward.dq, "dQ");
      expect_within_bound(tensors.dk, backward.dk, "dK");
      expect_within_bound(tensors.dv, backward.dv, "dV");
    }
  }
}

/// |elements| of a tensor.
io::HostTensor absolute(io::HostTensor tensor) {
  for (std::size_t i = size_of(tensor.dtype) - 1; i < tensor.bytes.size(); i += size_of(tensor.dtype)) {
    tensor.bytes[i] &= std::byte{0x7F};  // the sign is the topmost bit of the last byte
  }
  return tensor;
}

double largest(const std::vector<double>& values) {
  double result = 0.0;
  for (const double value : values) result = std::max(result, std::abs(value));
  return result;
}

// In 16 bits S and P are rounded too. With unit roundoff u and |S| <= s, exp(S) is off by a factor within exp(+-u s),
// so is the row's sum, and P is rounded once more: P is off by (exp(2 u s) (1 + u) - 1) P at most, and O by as much of
// sum(P |V|), on top of the bound.
TEST(StandardAttention, SixteenBitsRoundScoresAndProbabilities) {
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const double u = dtype == DType::float16 ? 0x1p-11 : 0x1p-8;
    const AttentionOptions options{.causal = CausalMask::bottom_right};
    Tensors tensors(dtype, 37, 53);
    ASSERT_TRUE(bench::standard_forward(tensors.forward(), options, 2).ok());
    reference::ForwardResult expected = reference::forward(tensors.forward(), options);
    const double scores =
        largest(reference::elements(view(tensors.q))) * largest(reference::elements(view(tensors.k))) * std::sqrt(24.0);
    const double relative = std::exp(2.0 * u * scores) * (1.0 + u) - 1.0;

    Tensors magnitudes = tensors;
    magnitudes.v = absolute(magnitudes.v);
    const reference::ForwardResult sums = reference::forward(magnitudes.forward(), options);
    for (std::size_t i = 0; i < expected.o.bound.size(); ++i) {
      expected.o.bound[i] += relative * sums.o.value[i] * (1.0 + u);  // and the result's own rounding
    }
    expect_within_bound(tensors.o, expected.o, "O");

    const reference::WorstElement unrounded =
        reference::worst_element(view(tensors.o), reference::forward(tensors.forward(), options).o);
    EXPECT_GT(unrounded.ratio, 1.0) << "P was not rounded";
  }
}

TEST(StandardAttention, RowsWithoutKeysGiveZeroAndMinusInfinity) {
  Tensors tensors(DType::float32, 9, 4);
  const AttentionOptions options{.causal = CausalMask::bottom_right};  // the first five queries see nothing
  ASSERT_TRUE(bench::standard_forward(tensors.forward(), options, 1).ok());
  float lse = 0.0F;
  std::memcpy(&lse, tensors.lse.bytes.data(), sizeof lse);
  EXPECT_EQ(lse, -INFINITY);
  float o = 1.0F;
  std::memcpy(&o, tensors.o.bytes.data(), sizeof o);
  EXPECT_EQ(o, 0.0F);
}

TEST(StandardAttention, RejectsWhatItDoesNotCompute) {
  Tensors tensors(DType::float32, 4, 4);
  ForwardArguments packed = tensors.forward();
  packed.q.rank = 3;
  EXPECT_EQ(bench::standard_forward(packed, {}, 1).code(), StatusCode::unsupported);
  ForwardArguments shortened = tensors.forward();
  const std::vector<std::int32_t> used{3, 4};
  shortened.sequences.seqused_k = tensor(used.data(), {2});
  EXPECT_EQ(bench::standard_forward(shortened, {}, 1).code(), StatusCode::unsupported);
}

}  // namespace
}  // namespace strobe::test
