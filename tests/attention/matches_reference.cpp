// SPDX-License-Identifier: Apache-2.0
#include "matches_reference.h"

#include <gtest/gtest.h>

#include "reference/bound/arithmetic.h"
#include "seeds.h"

namespace strobe::test {
namespace {

template <class Arguments>
reference::ArithmeticModel model_of(const Arguments& arguments, const AttentionOptions& options,
                                    const Execution& execution) {
  const Result<Plan> plan = make_plan(arguments, options, execution);
  return plan.ok() ? reference::arithmetic_of(*plan) : reference::ArithmeticModel{};
}

}  // namespace

void expect_within_bound(const GuardedTensor& actual, const reference::BoundedTensor& expected, const char* name) {
  if (!actual.view().given()) return;
  const reference::WorstElement worst = reference::worst_element(actual.view(), expected);
  EXPECT_LE(worst.ratio, 1.0) << name << ' ' << reference::describe(worst, actual.view());
  EXPECT_TRUE(actual.guards_intact()) << name << " was written outside its view";
}

bool compiles_only() { return number_from("STROBE_COMPILE_ONLY", 0) != 0; }

void expect_forward_matches(CaseTensors& tensors, const AttentionCase& attention,
                            const reference::ArithmeticModel& model) {
  if (compiles_only()) GTEST_SKIP() << "kernels are compiled alone";
  const reference::ForwardResult expected =
      reference::forward(tensors.forward_arguments(), attention.options, model, 1);
  expect_within_bound(tensors.o, expected.o, "o");
  expect_within_bound(tensors.lse, expected.lse, "lse");
  expect_within_bound(tensors.max_logits, expected.max_logits, "max_logits");
}

void expect_backward_matches(CaseTensors& tensors, const AttentionCase& attention,
                             const reference::ArithmeticModel& model) {
  if (compiles_only()) GTEST_SKIP() << "kernels are compiled alone";
  const reference::BackwardResult expected =
      reference::backward(tensors.backward_arguments(), attention.options, model, 1);
  expect_within_bound(tensors.dq, expected.dq, "dq");
  expect_within_bound(tensors.dk, expected.dk, "dk");
  expect_within_bound(tensors.dv, expected.dv, "dv");
  expect_within_bound(tensors.dqv, expected.dqv, "dqv");
  expect_within_bound(tensors.d_bias, expected.d_bias, "d_bias");
  expect_within_bound(tensors.d_sink, expected.d_sink, "d_sink");
  for (std::size_t i = 0; i < tensors.d_captures.size(); ++i) {
    expect_within_bound(tensors.d_captures[i], expected.d_captures[i], attention.text->captures[i].type.name.c_str());
  }
}

void expect_tensors_match_reference(CaseTensors& tensors, const AttentionCase& attention, const Execution& execution) {
  const Status forward_status = forward(tensors.forward_arguments(), attention.options, execution);
  ASSERT_TRUE(forward_status.ok()) << forward_status.message();
  expect_forward_matches(tensors, attention, model_of(tensors.forward_arguments(), attention.options, execution));
  if (!has_backward(attention)) return;
  const Status backward_status = backward(tensors.backward_arguments(), attention.options, execution);
  ASSERT_TRUE(backward_status.ok()) << backward_status.message();
  expect_backward_matches(tensors, attention, model_of(tensors.backward_arguments(), attention.options, execution));
}

void expect_case_matches_reference(const AttentionCase& attention, const Execution& execution) {
  SCOPED_TRACE(describe(attention));
  CaseTensors tensors(attention);
  expect_tensors_match_reference(tensors, attention, execution);
}

}  // namespace strobe::test
