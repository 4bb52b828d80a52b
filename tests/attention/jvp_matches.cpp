// SPDX-License-Identifier: Apache-2.0
#include "jvp_matches.h"

#include <gtest/gtest.h>

#include <cmath>

#include "matches_reference.h"
#include "reference/bound/arithmetic.h"
#include "reference/bound/reference.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

AttentionCase with_lse(AttentionCase attention) {
  attention.wants_lse = true;
  return attention;
}

/// Of the shape and dtype of `like`; N(0, 1) where that is a number.
GuardedTensor tangent_of(const GuardedTensor& like, const Placement& placement, Random& random) {
  const TensorView& view = like.view();
  GuardedTensor tangent(view.dtype, {view.shape.begin(), view.shape.begin() + view.rank}, placement, random);
  for (std::int64_t index = 0; index < tangent.size(); ++index) {
    const double drawn = random.normal();
    if (!std::isnan(like.get(index))) tangent.set(index, drawn);
  }
  return tangent;
}

}  // namespace

JvpTensors::JvpTensors(const AttentionCase& attention) : inputs(with_lse(attention)) {
  Random random(attention.seed + 1);
  q_tangent = tangent_of(inputs.q, attention.placement, random);
  k_tangent = tangent_of(inputs.k, attention.placement, random);
  v_tangent = tangent_of(inputs.v, attention.placement, random);
  o_tangent = tangent_of(inputs.o, attention.placement, random);  // NaN all over, as outputs are
  lse_tangent = tangent_of(inputs.lse, attention.placement, random);
}

JvpArguments JvpTensors::arguments() const {
  const ForwardArguments forward = inputs.forward_arguments();
  return {.q = forward.q,
          .k = forward.k,
          .v = forward.v,
          .q_tangent = q_tangent.view(),
          .k_tangent = k_tangent.view(),
          .v_tangent = v_tangent.view(),
          .o = forward.o,
          .lse = forward.lse,
          .o_tangent = o_tangent.view(),
          .lse_tangent = lse_tangent.view(),
          .sequences = forward.sequences,
          .modifiers = forward.modifiers,
          .random = forward.random};
}

void expect_jvp_matches_reference(JvpTensors& tensors, const JvpArguments& arguments, const AttentionOptions& options,
                                  const Execution& execution) {
  const Status status = jvp(arguments, options, execution);
  ASSERT_TRUE(status.ok()) << status.message();
  const Result<Plan> plan = make_plan(arguments, options, execution);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const reference::ArithmeticModel model = reference::arithmetic_of(*plan);
  const reference::JvpResult expected = reference::jvp(arguments, options, model, 1);
  expect_within_bound(tensors.o_tangent, expected.o_tangent, "o_tangent");
  if (arguments.lse_tangent.given()) expect_within_bound(tensors.lse_tangent, expected.lse_tangent, "lse_tangent");
  const reference::ForwardResult forward = reference::forward(tensors.inputs.forward_arguments(), options, model, 1);
  if (arguments.o.given()) expect_within_bound(tensors.inputs.o, forward.o, "o");
  if (arguments.lse.given()) expect_within_bound(tensors.inputs.lse, forward.lse, "lse");
}

void expect_jvp_matches_reference(const AttentionCase& attention, const Execution& execution) {
  SCOPED_TRACE(describe(attention));
  JvpTensors tensors(attention);
  expect_jvp_matches_reference(tensors, tensors.arguments(), attention.options, execution);
}

}  // namespace strobe::test
