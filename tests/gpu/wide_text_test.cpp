// SPDX-License-Identifier: Apache-2.0
// Heads of more than 256 columns with texts, block masks and biases, and without a softmax: both passes against the
// float64 reference.
#include <vector>

#include "text_cases.h"

namespace strobe::test {
namespace {

/// Of which kernels of wide heads have no gradient.
CapturedTensor constants(const std::string& name, const std::vector<std::int64_t>& shape) {
  CapturedTensor captured = reals(name, shape);
  captured.wants_gradient = false;
  return captured;
}

class GpuWideText : public TextTest {
 protected:
  static AttentionCase plain_wide_case(std::int64_t head_dim = 512, std::int64_t head_dim_v = 512) {
    AttentionCase attention = plain_case(0, head_dim, CausalMask::none);
    attention.head_dim_v = head_dim_v;
    return attention;
  }

  static AttentionCase wide_case(const TextCase& text, std::int64_t head_dim = 512, std::int64_t head_dim_v = 512) {
    AttentionCase attention = plain_wide_case(head_dim, head_dim_v);
    attention.text = text;
    return attention;
  }

  static AttentionCase unnormalized(AttentionCase attention) {
    attention.options.normalize = Normalization::none;
    attention.wants_lse = attention.has_d_lse = false;
    return attention;
  }

  void expect_gradients_by_choice(const AttentionCase& attention);
};

INSTANTIATE_TEST_SUITE_P(, GpuWideText, kFamilies, family_name);

TEST_P(GpuWideText, WithoutOptions) {
  expect_matches(plain_wide_case(), {{64, 64}, {130, 64}});
  expect_matches(plain_wide_case(320, 288), {{64, 130}});
}

TEST_P(GpuWideText, OfAll) {
  const TextCase text{"tanh(score * heat[head]) + bias[head][k - q + 150] - gate[k] + gate[q]",
                      "k <= q + 60 || kind[k] == kind[q]",
                      {constants("heat", {kHeads}), constants("bias", {kHeads, 500}), constants("gate", {400}),
                       integers("kind", {kLongest}, 3)}};
  expect_matches(wide_case(text), {{70, 200}});
  expect_matches(wide_case(text, 320, 256), {{100, 130}});
  expect_matches(wide_case(text, 64, 264), {{65, 90}});
}

TEST_P(GpuWideText, BesideOptions) {
  AttentionCase attention =
      wide_case({"score * heat[head] - 0.5 * abs(score)", "k % 5 != 0", {constants("heat", {kHeads})}}, 384, 384);
  attention.options = {.causal = CausalMask::bottom_right, .softcap = 20.0F};
  attention.options.window.left = 90;
  attention.alibi = Alibi::per_head;
  attention.has_sink = true;
  attention.q.seqused = {80, 33};
  attention.k.seqused = {150, 40};
  expect_matches(attention, {{100, 150}});
}

TEST_P(GpuWideText, MasksThatHideBlocks) {
  const TextCase documents{
      "", "k <= q && document[batch][k] == document[batch][q]", {integers("document", {2, kLongest}, 2)}};
  expect_matches(wide_case(documents), {{150, 150}});
  AttentionCase grouped = wide_case({"", "abs(q - k) < 20 || k < 3", {}}, 320, 512);
  grouped.heads_q = 4;
  grouped.options.deterministic = true;
  expect_matches(grouped, {{200, 260}});
}

// Few queries, whose keys are split among CTAs.
TEST_P(GpuWideText, FewQueries) {
  AttentionCase attention = wide_case({"score - 0.01 * abs(q - k)", "(q + k) % 3 != 0", {}});
  attention.batch = 1;
  attention.heads_q = attention.heads_kv = 1;
  expect_matches(attention, {{1, 1500}, {17, 900}});
}

TEST_P(GpuWideText, WithoutASoftmax) {
  expect_matches(unnormalized(wide_case({"sigmoid(score - log(float(k_len)))", "", {}})), {{70, 130}});
  expect_matches(unnormalized(wide_case({"score * sigmoid(score) / k_len", "k <= q || (q - k) % 3 == 0", {}})),
                 {{70, 130}});
  AttentionCase linear = unnormalized(plain_wide_case());
  linear.options.causal = CausalMask::bottom_right;
  linear.batch = 1;
  expect_matches(linear, {{130, 130}, {2, 1000}});
}

TEST_P(GpuWideText, Dropout) {
  AttentionCase attention = wide_case({"tanh(score) * 2", "abs(q - k) < 70", {}});
  attention.options.dropout = 0.25F;
  expect_matches(attention, {{130, 200}});
}

TEST_P(GpuWideText, RowInvariantCalls) {
  AttentionCase attention = wide_case({"score - 0.01 * abs(q - k)", "(q + k) % 3 != 0", {}}, 320, 256);
  attention.options.row_invariant = true;
  expect_matches(attention, {{70, 200}, {3, 300}});
}

// The sm80 kernels alone have these gradients; where sm90 serves a call without, such a call is theirs.
TEST_P(GpuWideText, GradientsOfCaptures) {
  if (tested_family() != Family::sm80) GTEST_SKIP() << "of the sm80 kernels";
  const TextCase text{"score * heat[head] + bias[head][k - q + 150] - gate[k] + gate[q]",
                      "",
                      {reals("heat", {kHeads}), reals("bias", {kHeads, 500}), reals("gate", {400})}};
  expect_matches(wide_case(text), {{70, 90}});
  AttentionCase attention = wide_case(text, 320, 256);
  attention.options.deterministic = true;
  attention.options.causal = CausalMask::bottom_right;
  expect_matches(attention, {{100, 130}});
}

TEST_P(GpuWideText, GradientsOfBiases) {
  if (tested_family() != Family::sm80) GTEST_SKIP() << "of the sm80 kernels";
  AttentionCase attention = plain_wide_case();
  attention.bias = BiasCase{.sharing = {.per_head = true}};
  expect_matches(attention, {{100, 130}});
  attention.options = {.causal = CausalMask::bottom_right, .softcap = 20.0F, .dropout = 0.2F};
  expect_matches(attention, {{70, 90}});
}

/// Names no kernels: on Hopper the forward's are those of sm90, the backward's those of sm80.
void GpuWideText::expect_gradients_by_choice(const AttentionCase& attention) {
  SCOPED_TRACE(describe(attention));
  CaseTensors tensors(attention);
  DeviceCopies copies(device());
  const auto place = [&](const GuardedTensor& tensor) { return copies.place(tensor); };
  const ForwardArguments forward = tensors.forward_arguments(place);
  const BackwardArguments backward = tensors.backward_arguments(place);
  const Execution chosen{.engine = Engine::gpu, .stream = stream().get()};
  const Result<Plan> forward_plan = make_plan(forward, attention.options, chosen);
  const Result<Plan> backward_plan = make_plan(backward, attention.options, chosen);
  ASSERT_TRUE(forward_plan.ok()) << forward_plan.status().message();
  ASSERT_TRUE(backward_plan.ok()) << backward_plan.status().message();
  EXPECT_EQ(forward_plan->kernels(), "sm90");
  EXPECT_EQ(backward_plan->kernels(), "sm80");
  ASSERT_TRUE(forward_plan->run(forward, chosen).ok());
  ASSERT_TRUE(backward_plan->run(backward, chosen).ok());
  copies.download(tensors.forward_outputs());
  copies.download(tensors.backward_outputs());
  test::expect_forward_matches(tensors, attention, reference::arithmetic_of(*forward_plan));
  expect_backward_matches(tensors, attention, reference::arithmetic_of(*backward_plan));
}

TEST_P(GpuWideText, GradientsOfTermsByKernelsThatTheEngineChooses) {
  if (tested_family() != Family::sm90) GTEST_SKIP() << "of GPUs that have both families";
  AttentionCase attention = plain_wide_case();
  attention.q.rows = 100;
  attention.k.rows = 130;
  attention.bias = BiasCase{.sharing = {.per_head = true}};
  attention.options.causal = CausalMask::bottom_right;
  expect_gradients_by_choice(attention);
  attention =
      wide_case({"score * heat[head] + gate[k]", "", {reals("heat", {kHeads}), reals("gate", {400})}}, 320, 256);
  attention.q.rows = 100;
  attention.k.rows = 130;
  expect_gradients_by_choice(attention);
}

TEST_P(GpuWideText, Biases) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    AttentionCase attention = plain_wide_case();
    attention.dtype = dtype;
    attention.bias = BiasCase{.hidden = 0.2, .wants_gradient = false};
    expect_matches(attention, {{100, 130}});
    attention.options = {.causal = CausalMask::bottom_right, .softcap = 20.0F, .dropout = 0.2F};
    attention.alibi = Alibi::per_head;
    attention.k.seqused = {130, 40};
    expect_matches(attention, {{130, 130}});
  }
}

TEST_P(GpuWideText, BlockMasks) {
  for (const std::int64_t size : {64, 128}) {
    AttentionCase attention = plain_wide_case(320, 384);
    attention.heads_q = 4;
    attention.blocks = {.size = size, .sharing = {.per_batch = true, .per_head = true}, .visible = 0.4};
    expect_matches(attention, {{300, 333}});
    attention.options.causal = CausalMask::bottom_right;
    attention.options.deterministic = true;
    expect_matches(attention, {{300, 200}});
  }
}

}  // namespace
}  // namespace strobe::test
