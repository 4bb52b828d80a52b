// SPDX-License-Identifier: Apache-2.0
// Scores that are not normalized: against the reference, against sums written out here, and what they do not have.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "every_dtype.h"
#include "misuse.h"
#include "strobe/jvp.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

AttentionCase unnormalized_case(std::int64_t seqlen, std::int64_t head_dim) {
  AttentionCase attention = square(seqlen, head_dim);
  attention.heads_q = 4;
  attention.options.normalize = Normalization::none;
  attention.wants_lse = attention.has_d_lse = false;
  return attention;
}

TextShape shape_of(const AttentionCase& attention) {
  return {attention.batch, attention.heads_q, attention.heads_kv, attention.q.rows, attention.k.rows};
}

class Normalize : public EveryDType {};

TEST_P(Normalize, LinearAttentionMatchesTheReference) {
  expect_matches(unnormalized_case(150, 40), [](AttentionCase&) {});
  expect_matches(unnormalized_case(150, 40), [](AttentionCase& attention) {
    attention.options.causal = CausalMask::bottom_right;
    attention.options.softcap = 10.0F;
    attention.options.dropout = 0.25F;
    attention.bias = BiasCase{.hidden = 0.2};
    attention.alibi = Alibi::per_head;
  });
}

TEST_P(Normalize, TextsMatchTheReference) {
  for (const TextCase& text : unnormalized_texts(shape_of(unnormalized_case(90, 24)))) {
    expect_matches(unnormalized_case(90, 24), [&](AttentionCase& attention) { attention.text = text; });
    expect_matches(unnormalized_case(90, 24), [&](AttentionCase& attention) {
      attention.text = text;
      attention.options.causal = CausalMask::bottom_right;
      attention.options.window = {40, 0};
      attention.options.softcap = 20.0F;
      attention.options.dropout = 0.25F;
      attention.alibi = Alibi::per_head;
      attention.bias = BiasCase{};
      attention.blocks = BlockCase{.size = 64, .visible = 0.8};
      attention.k.seqused = {90, 33};
    });
  }
}

TEST_P(Normalize, AFewQueriesMatchTheReference) {
  expect_matches(unnormalized_case(700, 32), [](AttentionCase& attention) {
    attention.q.rows = 1;
    attention.text = {"score * sigmoid(score) / k_len", "", {}};
  });
}

INSTANTIATE_TEST_SUITE_P(Normalize, Normalize, every_dtype(), dtype_name);

// O and the gradients of sigmoid attention, one query and key after another.
TEST(Normalize, SigmoidAttentionIsASumOfSigmoids) {
  AttentionCase attention = unnormalized_case(9, 4);
  attention.heads_q = attention.heads_kv = attention.batch = 1;
  attention.text = {"sigmoid(score)", "k <= q", {}};
  CaseTensors tensors(attention);
  ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
  ASSERT_TRUE(backward(tensors.backward_arguments(), attention.options).ok());
  std::vector<double> o(9 * 4), dq(9 * 4), dk(9 * 4), dv(9 * 4);
  for (std::int64_t i = 0; i < 9; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      double s = 0.0, dp = 0.0;
      for (std::int64_t c = 0; c < 4; ++c) {
        s += 0.5 * tensors.q.get(i * 4 + c) * tensors.k.get(j * 4 + c);
        dp += tensors.d_o.get(i * 4 + c) * tensors.v.get(j * 4 + c);
      }
      const double p = 1.0 / (1.0 + std::exp(-s));
      for (std::int64_t c = 0; c < 4; ++c) {
        o[i * 4 + c] += p * tensors.v.get(j * 4 + c);
        dv[j * 4 + c] += p * tensors.d_o.get(i * 4 + c);
        dq[i * 4 + c] += 0.5 * dp * p * (1.0 - p) * tensors.k.get(j * 4 + c);
        dk[j * 4 + c] += 0.5 * dp * p * (1.0 - p) * tensors.q.get(i * 4 + c);
      }
    }
  }
  for (const auto& [actual, expected] : {std::pair(&tensors.o, &o), std::pair(&tensors.dq, &dq),
                                         std::pair(&tensors.dk, &dk), std::pair(&tensors.dv, &dv)}) {
    for (std::int64_t i = 0; i < 9 * 4; ++i) ASSERT_NEAR(actual->get(i), (*expected)[i], 1e-5) << i;
  }
}

TEST(Normalize, ABackwardReadsNeitherOutputNorLse) {
  AttentionCase attention = unnormalized_case(50, 16);
  CaseTensors tensors(attention);
  BackwardArguments arguments = tensors.backward_arguments();
  arguments.o = {};
  ASSERT_TRUE(backward(arguments, attention.options).ok());
  expect_backward_matches(tensors, attention);
}

TEST(Normalize, ThePlanSaysSo) {
  const AttentionCase attention = unnormalized_case(50, 16);
  const CaseTensors tensors(attention);
  const Result<Plan> plan = make_plan(tensors.forward_arguments(), attention.options);
  ASSERT_TRUE(plan.ok());
  EXPECT_NE(plan->explain().find("normalize     none"), std::string::npos) << plan->explain();
}

AttentionCase misused_case() {
  AttentionCase attention = valid_case();
  attention.has_sink = attention.wants_max_logits = true;
  return attention;
}

class ForwardNormalizeMisuse : public testing::TestWithParam<ForwardMisuse> {};
class BackwardNormalizeMisuse : public testing::TestWithParam<BackwardMisuse> {};

TEST_P(ForwardNormalizeMisuse, IsRejected) { expect_rejected(misused_case(), GetParam()); }
TEST_P(BackwardNormalizeMisuse, IsRejected) { expect_rejected(misused_case(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Normalize, ForwardNormalizeMisuse,
    testing::Values(ForwardMisuse{"Sink", [](ForwardCall& c) { c.options.normalize = Normalization::none; }, kInvalid,
                                  "sink is given with normalize none: it belongs to the softmax"},
                    ForwardMisuse{"Lse",
                                  [](ForwardCall& c) {
                                    c.options.normalize = Normalization::none;
                                    c.arguments.modifiers.sink = {};
                                  },
                                  kInvalid, "lse is given with normalize none: it belongs to the softmax"},
                    ForwardMisuse{"MaxLogits",
                                  [](ForwardCall& c) {
                                    c.options.normalize = Normalization::none;
                                    c.arguments.modifiers.sink = {};
                                    c.arguments.lse = {};
                                  },
                                  kInvalid, "max_logits is given with normalize none: it belongs to the softmax"}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Normalize, BackwardNormalizeMisuse,
    testing::Values(BackwardMisuse{"Sink", [](BackwardCall& c) { c.options.normalize = Normalization::none; }, kInvalid,
                                   "sink is given with normalize none: it belongs to the softmax"},
                    BackwardMisuse{"Lse",
                                   [](BackwardCall& c) {
                                     c.options.normalize = Normalization::none;
                                     c.arguments.modifiers.sink = {};
                                   },
                                   kInvalid, "lse is given with normalize none: it belongs to the softmax"},
                    BackwardMisuse{"DLse",
                                   [](BackwardCall& c) {
                                     c.options.normalize = Normalization::none;
                                     c.arguments.modifiers.sink = {};
                                     c.arguments.lse = {};
                                   },
                                   kInvalid, "d_lse is given with normalize none: it belongs to the softmax"}),
    [](const auto& test) { return test.param.name; });

TEST(NormalizeMisuse, AJvpIsUnsupported) {
  const CaseTensors tensors(valid_case());
  const ForwardArguments forward = tensors.forward_arguments();
  const Status status = jvp({.q = forward.q, .k = forward.k, .v = forward.v}, {.normalize = Normalization::none});
  EXPECT_EQ(status.code(), kUnsupported);
  EXPECT_EQ(status.message(), "normalize is none: no engine has the JVP of scores that are not normalized");
}

}  // namespace
}  // namespace strobe::test
