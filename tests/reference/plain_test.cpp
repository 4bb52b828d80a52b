// SPDX-License-Identifier: Apache-2.0
// The plain reference: its gradients against central differences of its forward, and its agreement with the values to
// which the bounds belong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "case_tensors.h"
#include "random_case.h"
#include "reference/bound/reference.h"
#include "reference/plain/call.h"
#include "seeds.h"

namespace strobe::test {
namespace {

namespace plain = reference::plain;

/// The bound of an engine whose every operation rounds to float64: what two ways of computing the same may differ by.
reference::ArithmeticModel float64_arithmetic() {
  return {.unit_roundoff = 0x1p-53,
          .exp2_error = 0x1p-51,
          .log_error = 0x1p-50,
          .tanh_error = 0x1p-50,
          .underflow = 0x1p-1022,
          .block_n = 1};
}

void expect_agree(const std::vector<double>& values, const reference::BoundedTensor& expected, const char* name) {
  ASSERT_EQ(values.size(), expected.value.size()) << name;
  for (std::size_t index = 0; index < values.size(); ++index) {
    const double other = expected.value[index];
    if (values[index] == other) continue;
    ASSERT_TRUE(std::isfinite(expected.bound[index])) << name << " element " << index;
    ASSERT_LE(std::fabs(values[index] - other), expected.bound[index])
        << name << " element " << index << " is " << values[index] << " and " << other;
  }
}

void expect_references_agree(const AttentionCase& attention) {
  SCOPED_TRACE(describe(attention));
  const CaseTensors tensors(attention);
  const ForwardArguments forward = tensors.forward_arguments();
  const plain::Output output = plain::forward(forward, attention.options);
  const reference::ForwardResult bounded = reference::forward(forward, attention.options, float64_arithmetic(), 1);
  expect_agree(output.o, bounded.o, "o");
  expect_agree(output.lse, bounded.lse, "lse");
  expect_agree(output.max_logits, bounded.max_logits, "max_logits");
  if (attention.tree) return;  // tree masks are of forwards

  const BackwardArguments backward = tensors.backward_arguments();
  const plain::Gradients gradients = plain::backward(backward, attention.options);
  const reference::BackwardResult bounded_gradients =
      reference::backward(backward, attention.options, float64_arithmetic(), 1);
  expect_agree(gradients.dq, bounded_gradients.dq, "dq");
  expect_agree(gradients.dqv, bounded_gradients.dqv, "dqv");
  expect_agree(gradients.dk, bounded_gradients.dk, "dk");
  expect_agree(gradients.dv, bounded_gradients.dv, "dv");
  expect_agree(gradients.d_bias, bounded_gradients.d_bias, "d_bias");
  expect_agree(gradients.d_sink, bounded_gradients.d_sink, "d_sink");
}

TEST(Plain, AgreesWithTheValuesOfTheBounds) {
  for (const std::uint64_t seed : chosen_seeds(200)) {
    AttentionCase attention = random_case(seed, {.dtypes = {DType::float32}});  // 16-bit outputs would widen the bound
    attention.wants_lse = is_normalized(attention);
    expect_references_agree(attention);
    if (HasFailure()) FAIL() << "reproduce with STROBE_SEED=" << seed;
  }
}

// sum(dO * O) + sum(dLSE * LSE), the scalar whose gradients backward gives.
double loss(const CaseTensors& tensors, const AttentionCase& attention) {
  const plain::Output result = plain::forward(tensors.forward_arguments(), attention.options);
  double sum = 0.0;
  for (std::size_t index = 0; index < result.o.size(); ++index) {
    if (result.o[index] != 0.0) sum += tensors.d_o.get(static_cast<std::int64_t>(index)) * result.o[index];
  }
  for (std::size_t index = 0; index < result.lse.size() && attention.has_d_lse; ++index) {
    if (std::isfinite(result.lse[index])) {
      sum += tensors.d_lse.get(static_cast<std::int64_t>(index)) * result.lse[index];
    }
  }
  return sum;
}

// Inputs with few significant bits, so that input + step is exact in float32.
void round_inputs(GuardedTensor& input) {
  for (std::int64_t index = 0; index < input.size(); ++index) {
    if (!std::isnan(input.get(index))) input.set(index, std::round(input.get(index) * 64.0) / 64.0);
  }
}

// Five-point central differences: the error is of order step^4.
void expect_gradient(CaseTensors& tensors, GuardedTensor& input, const std::vector<double>& gradient,
                     const AttentionCase& attention, const char* name) {
  constexpr double kStep = 0x1p-9;
  for (std::int64_t index = 0; index < input.size(); ++index) {
    const double center = input.get(index);
    if (!std::isfinite(center)) {
      EXPECT_EQ(gradient[index], 0.0) << name << " element " << index << " is unused or has no weight";
      continue;
    }
    const auto loss_at = [&](double steps) {
      input.set(index, center + steps * kStep);
      return loss(tensors, attention);
    };
    const double slope = (8.0 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12.0 * kStep);
    input.set(index, center);
    EXPECT_NEAR(gradient[index], slope, 1e-9) << name << " element " << index;
  }
}

class PlainGradients : public testing::TestWithParam<AttentionCase> {};

TEST_P(PlainGradients, MatchCentralDifferences) {
  const AttentionCase& attention = GetParam();
  SCOPED_TRACE(describe(attention));
  CaseTensors tensors(attention);
  for (GuardedTensor* input : {&tensors.q, &tensors.k, &tensors.v, &tensors.qv, &tensors.bias, &tensors.sink})
    round_inputs(*input);
  const plain::Gradients gradients = plain::backward(tensors.backward_arguments(), attention.options);
  expect_gradient(tensors, tensors.q, gradients.dq, attention, "dq");
  expect_gradient(tensors, tensors.k, gradients.dk, attention, "dk");
  expect_gradient(tensors, tensors.v, gradients.dv, attention, "dv");
  if (attention.has_qv) expect_gradient(tensors, tensors.qv, gradients.dqv, attention, "dqv");
  if (attention.bias) expect_gradient(tensors, tensors.bias, gradients.d_bias, attention, "d_bias");
  if (attention.has_sink) expect_gradient(tensors, tensors.sink, gradients.d_sink, attention, "d_sink");
}

/// Small cases that differ by their options.
class GradientCases {
 public:
  template <class Change>
  void add(const Change& change) {
    AttentionCase attention{
        .batch = 2, .heads_q = 4, .heads_kv = 2, .head_dim = 3, .head_dim_v = 2, .q = {.rows = 5}, .k = {.rows = 6}};
    change(attention);
    attention.seed = all.size() + 1;
    all.push_back(attention);
  }

  std::vector<AttentionCase> all;
};

void add_masks_and_lengths(GradientCases& cases) {
  cases.add([](AttentionCase&) {});
  cases.add([](AttentionCase& c) { c.has_d_lse = false; });
  cases.add([](AttentionCase& c) { c.options.scale = -0.75F; });
  cases.add([](AttentionCase& c) { c.options.softcap = 1.5F; });
  cases.add([](AttentionCase& c) { c.has_qv = true; });
  cases.add([](AttentionCase& c) {
    c.has_qv = true;
    c.options = {.causal = CausalMask::bottom_right, .softcap = 1.5F};
  });
  cases.add([](AttentionCase& c) { c.options.causal = CausalMask::bottom_right; });
  cases.add([](AttentionCase& c) { c.options.causal = CausalMask::top_left; });
  cases.add(
      [](AttentionCase& c) { c.options = {.causal = CausalMask::bottom_right, .window = {1, -1}, .softcap = 2.0F}; });
  cases.add([](AttentionCase& c) { c.options = {.causal = CausalMask::top_left, .window = {1, 0}}; });
  cases.add([](AttentionCase& c) {
    c.options.window = {-1, 0};
    c.placement.layout = Layout::scrambled;
  });
  cases.add([](AttentionCase& c) {
    c.q.seqused = {3, 0};
    c.k.seqused = {6, 2};
  });
  cases.add([](AttentionCase& c) {
    c.q = {.rows = 8, .cu_seqlens = {0, 5, 7}};
    c.k = {.rows = 7, .cu_seqlens = {0, 3, 7}, .seqused = {2, 4}};
    c.options.causal = CausalMask::bottom_right;
  });
  cases.add([](AttentionCase& c) { c.options.chunk = 2; });
  cases.add([](AttentionCase& c) {
    c.options = {.causal = CausalMask::top_left, .chunk = 3};
    c.has_sink = true;
  });
  cases.add([](AttentionCase& c) {
    c.alibi = Alibi::per_head;
    c.options.causal = CausalMask::bottom_right;
  });
  cases.add([](AttentionCase& c) {
    c.alibi = Alibi::per_batch_and_head;
    c.options.softcap = 2.0F;
  });
}

void add_modifiers(GradientCases& cases) {
  for (const bool per_batch : {false, true}) {
    for (const bool per_head : {false, true}) {
      cases.add([&](AttentionCase& c) {
        c.bias = {.sharing = {.per_batch = per_batch, .per_head = per_head}, .hidden = 0.3};
        c.options.causal = CausalMask::bottom_right;
        c.options.softcap = 2.0F;
      });
    }
  }
  cases.add([](AttentionCase& c) { c.has_sink = true; });
  cases.add([](AttentionCase& c) {
    c.has_sink = true;  // the first queries see nothing else
    c.options.causal = CausalMask::bottom_right;
    c.k.rows = 3;
    c.has_d_lse = true;
  });
  cases.add([](AttentionCase& c) { c.options.dropout = 0.4F; });
  cases.add([](AttentionCase& c) {
    c.options = {.causal = CausalMask::bottom_right, .softcap = 2.0F, .dropout = 0.5F};
    c.alibi = Alibi::per_head;
    c.bias = {.dtype = DType::float32, .sharing = {.per_head = true}};
    c.has_sink = true;
    c.random = {.seed = 7, .offset = 9};
  });
  cases.add([](AttentionCase& c) {
    c.q.rows = 70;  // two blocks of queries, two of keys
    c.k.rows = 66;
    c.batch = 1;
    c.heads_q = 2;
    c.heads_kv = 1;
    c.blocks = {.size = 64, .sharing = {.per_head = true}, .visible = 0.6};
    c.has_sink = true;
  });
}

void add_scores_that_are_not_normalized(GradientCases& cases) {
  const auto without_softmax = [](AttentionCase& c) {
    c.options.normalize = Normalization::none;
    c.wants_lse = c.has_d_lse = false;
  };
  cases.add([&](AttentionCase& c) {
    without_softmax(c);
    c.bias = {.sharing = {.per_head = true}, .hidden = 0.3};
    c.options.causal = CausalMask::bottom_right;
  });
  cases.add([&](AttentionCase& c) {
    without_softmax(c);
    c.options.softcap = 2.0F;
    c.options.dropout = 0.4F;
    c.alibi = Alibi::per_head;
    c.text = {"score * sigmoid(score) / k_len", "k != 2", {}};
  });
}

std::vector<AttentionCase> gradient_cases() {
  GradientCases cases;
  add_masks_and_lengths(cases);
  add_modifiers(cases);
  add_scores_that_are_not_normalized(cases);
  return cases.all;
}

INSTANTIATE_TEST_SUITE_P(Options, PlainGradients, testing::ValuesIn(gradient_cases()));

}  // namespace
}  // namespace strobe::test
