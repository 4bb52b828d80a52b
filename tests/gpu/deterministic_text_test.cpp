// SPDX-License-Identifier: Apache-2.0
// Gradients of captures with `deterministic`, of every kind of index: right against the float64 reference, and of the
// same bits in every run, in any workspace and on any stream.
#include <vector>

#include "text_cases.h"

namespace strobe::test {
namespace {

class GpuDeterministicText : public TextTest {
 protected:
  void expect_same_bits(AttentionCase attention, const std::vector<Lengths>& shapes) {
    attention.options.deterministic = true;
    for (const auto& [queries, keys] : shapes) {
      attention.q.rows = queries;
      attention.k.rows = keys;
      SCOPED_TRACE(describe(attention));
      DeviceCase call(attention, device());
      call.expect_same_backward(stream(), 3);
      if (HasFailure()) return;
      call.expect_forward_right();
      call.expect_backward_takes_poisoned_workspace(stream());
      if (HasFailure()) return;
      expect_same_on_another_stream(call);
    }
  }

  void expect_same_bits(const TextCase& text) {
    expect_same_bits(text_case(text, 64), {{200, 333}, {1, 300}, {450, kLongest}});
    AttentionCase attention = text_case(text, 128);
    attention.options.causal = CausalMask::bottom_right;
    attention.q.seqused = {300, 77};
    attention.k.seqused = {201, 33};
    expect_same_bits(attention, {{330, 201}});
  }

 private:
  void expect_same_on_another_stream(DeviceCase& call) {
    const Result<gpu::Stream> other = gpu::Stream::create(device());
    ASSERT_TRUE(other.ok()) << other.status().message();
    const auto outputs = call.tensors.backward_outputs();
    const DeviceCase::Bits bits = call.bits(outputs);
    call.poison(outputs);
    call.backward(*other);
    ASSERT_TRUE(other->synchronize().ok());
    EXPECT_TRUE(call.bits(outputs) == bits);
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuDeterministicText, kFamilies, family_name);

TEST_P(GpuDeterministicText, OfDiagonals) {
  expect_same_bits({"score + bias[head][k - q + 150]", "", {reals("bias", {kHeads, 500})}});
}

TEST_P(GpuDeterministicText, OfDiagonalsByTables) {
  expect_same_bits({"score + bias[head][bucket[max(q - k, 0)]] + slope[head] * (k - q)",
                    "",
                    {reals("bias", {kHeads, 8}), integers("bucket", {400}, 7), reals("slope", {kHeads})}});
}

TEST_P(GpuDeterministicText, OfQueriesAndKeys) {
  expect_same_bits({"score * scale[q] + gate[batch][head][q] - gate[batch][head_kv][k]",
                    "",
                    {reals("gate", {2, kHeads, 600}), reals("scale", {500})}});
}

TEST_P(GpuDeterministicText, OfHeads) {
  expect_same_bits({"tanh(score * heat[head]) * rise[batch] / log(float(k_len + 2)) + shift",
                    "k <= q + 60 || k % 3 == 0",
                    {reals("heat", {kHeads}), reals("rise", {2}), real("shift")}});
}

TEST_P(GpuDeterministicText, OfPairs) {
  expect_same_bits(text_case({"score + bias[q][k]", "", {reals("bias", {400, 350})}}, 64), {{200, 333}});
}

TEST_P(GpuDeterministicText, OfAnyIndex) {
  expect_same_bits(text_case({"score + table[(q * 7 + k * k) % 61]", "", {reals("table", {61})}}, 64), {{200, 333}});
}

TEST_P(GpuDeterministicText, OfAnIndexThatDependsOnTheScore) {
  AttentionCase attention = text_case({"score + table[int(score) + 3]", "", {reals("table", {7})}}, 64);
  attention.batch = 1;
  attention.heads_q = attention.heads_kv = 1;
  expect_same_bits(attention, {{40, 50}});
}

// Gradients of some of the captures, and of reads of one capture by several indices.
TEST_P(GpuDeterministicText, OfSomeCaptures) {
  expect_same_bits(text_case({"score + a[k - q + 99] + b[k - q + 99] * score + c[q - k + 300] + a[q - k + 200] + a[k]",
                              "",
                              {reals("a", {700}), without_gradient("b"), reals("c", {400})}},
                             64),
                   {{200, 333}, {450, kLongest}});
}

TEST_P(GpuDeterministicText, WithoutASoftmax) {
  AttentionCase attention = text_case({"sigmoid(score + bias[head][k - q + 150]) * heat[head]",
                                       "",
                                       {reals("bias", {kHeads, 500}), reals("heat", {kHeads})}},
                                      64);
  attention.options.normalize = Normalization::none;
  attention.wants_lse = attention.has_d_lse = false;
  expect_same_bits(attention, {{200, 333}});
}

TEST_P(GpuDeterministicText, OfWideHeads) {
  expect_same_bits(text_case({"score * heat[head] + bias[head][k - q + 150] - gate[k] + gate[q]",
                              "",
                              {reals("heat", {kHeads}), reals("bias", {kHeads, 300}), reals("gate", {300})}},
                             256),
                   {{200, 333}});
}

}  // namespace
}  // namespace strobe::test
