// SPDX-License-Identifier: Apache-2.0
// Budgets: what is promised is kept, and what is chosen is the cheapest that keeps it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "accuracy.h"
#include "strobe/error_budget.h"

namespace strobe::test {
namespace {

using reference::EightBitInputs;

constexpr std::int64_t kBudgetSeqlen = 2048;

Result<QuantizationPlan> plan_for(const Accuracy& inputs, const ErrorBudget& budget,
                                  const AttentionOptions& options = {}) {
  return plan_quantization(inputs.q(), inputs.k(), inputs.v(), budget, options);
}

class BudgetOn : public testing::TestWithParam<EightBitInputs> {};

TEST_P(BudgetOn, EstimatesAndBoundsHold) {
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
    const AttentionOptions options{.causal = causal};
    Accuracy accuracy(GetParam(), 2, 2 * kBudgetSeqlen, 0, options);
    for (const QuantizationMode mode : {QuantizationMode::fast, QuantizationMode::accurate}) {
      const Result<QuantizationPlan> plan = plan_for(accuracy, {.mode = mode}, options);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_TRUE(plan->measured);
      const double measured = accuracy.rmse(plan->options);
      EXPECT_LE(measured, plan->rmse) << plan->explanation;
      EXPECT_LE(plan->rmse, 2.0 * measured) << plan->explanation;  // and is worth something
      EXPECT_LE(accuracy.largest_error(), plan->error_bound) << plan->explanation;
    }
  }
}

TEST_P(BudgetOn, TheCheapestThatKeepsItIsChosen) {
  Accuracy accuracy(GetParam(), 1, kBudgetSeqlen);
  const Result<QuantizationPlan> fast = plan_for(accuracy, {.mode = QuantizationMode::fast});
  const Result<QuantizationPlan> accurate = plan_for(accuracy, {.mode = QuantizationMode::accurate});
  ASSERT_TRUE(fast.ok() && accurate.ok());
  ASSERT_LT(accurate->rmse, fast->rmse);
  for (const double max_rmse : {1.01 * fast->rmse, 0.5 * (fast->rmse + accurate->rmse), 1.01 * accurate->rmse}) {
    const Result<QuantizationPlan> plan = plan_for(accuracy, {.max_rmse = max_rmse});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE(plan->rmse, max_rmse);
    EXPECT_LE(accuracy.rmse(plan->options), max_rmse) << plan->explanation;
    EXPECT_EQ(plan->options.element == DType::float8_e4m3, max_rmse > fast->rmse) << plan->explanation;
  }
  const Result<QuantizationPlan> none = plan_for(accuracy, {.max_rmse = 0.5 * accurate->rmse});
  EXPECT_EQ(none.status().code(), StatusCode::unsupported);
  EXPECT_EQ(none.status().message().find("no 8-bit operands keep to max_rmse"), 0U) << none.status().message();
}

INSTANTIATE_TEST_SUITE_P(Inputs, BudgetOn, testing::ValuesIn(reference::kEightBitInputs), inputs_name);

// Nothing is known but shapes: the estimate is for normal elements, and of those it holds.
TEST(Budget, WithoutDataElementsAreTakenToBeNormal) {
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
    const AttentionOptions options{.causal = causal};
    Accuracy accuracy(EightBitInputs::normal, 2, kBudgetSeqlen, 0, options);
    for (const QuantizationMode mode : {QuantizationMode::fast, QuantizationMode::accurate}) {
      const auto without_data = [](ConstTensorView view) {
        view.data = nullptr;
        return view;
      };
      const Result<QuantizationPlan> plan = plan_quantization(without_data(accuracy.q()), without_data(accuracy.k()),
                                                              without_data(accuracy.v()), {.mode = mode}, options);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_FALSE(plan->measured);
      EXPECT_TRUE(std::isinf(plan->error_bound));
      const double measured = accuracy.rmse(plan->options);
      EXPECT_LE(measured, plan->rmse) << plan->explanation;
      EXPECT_LE(plan->rmse, 2.0 * measured) << plan->explanation;
    }
  }
}

TEST(Budget, ABoundOnEveryElementIsKeptOrRejected) {
  Accuracy accuracy(EightBitInputs::normal, 1, kBudgetSeqlen);
  const Result<QuantizationPlan> plan = plan_for(accuracy, {.mode = QuantizationMode::accurate});
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan_for(accuracy, {.mode = QuantizationMode::accurate, .max_error = plan->error_bound}).ok());
  EXPECT_EQ(plan_for(accuracy, {.max_error = 1e-3}).status().code(), StatusCode::unsupported);
}

TEST(Budget, SaysWhatItChose) {
  Accuracy accuracy(EightBitInputs::normal, 1, 256);
  const Result<QuantizationPlan> plan = plan_for(accuracy, {});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->keys_per_sum, 2048);
  for (const char* line : {"operands      float8_e4m3", "rotation      Q and K; K centred",
                           "sums          of the hardware over 2048 keys", "error of O    "}) {
    EXPECT_NE(plan->explanation.find(line), std::string::npos) << plan->explanation;
  }
}

TEST(Budget, RepeatedHeadsAndBatchEntriesAreReadOnce) {
  Accuracy accuracy(EightBitInputs::normal, 1, 256);
  const auto repeated = [](ConstTensorView view, std::int64_t heads) {
    view.shape[0] = std::int64_t{1} << 30;
    view.shape[2] = heads;
    view.strides[0] = view.strides[2] = 0;
    return view;
  };
  const Result<QuantizationPlan> once = plan_for(accuracy, {});
  const Result<QuantizationPlan> plan =
      plan_quantization(repeated(accuracy.q(), 8), repeated(accuracy.k(), 8), repeated(accuracy.v(), 8), {});
  ASSERT_TRUE(once.ok());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->rmse, once->rmse);
  EXPECT_EQ(plan->error_bound, once->error_bound);
}

TEST(Budget, OneRowForEverIsNotRead) {
  const std::vector<float> row(64, 1.0F);
  ConstTensorView endless = tensor(row.data(), {1, 1, 1, 64});
  endless.shape[1] = std::int64_t{1} << 40;
  endless.strides[1] = 0;
  const Result<QuantizationPlan> plan = plan_quantization(endless, endless, endless, {});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_FALSE(plan->measured);
}

TEST(Budget, MisuseIsReported) {
  Accuracy accuracy(EightBitInputs::normal, 1, 64);
  EXPECT_EQ(plan_for(accuracy, {.max_rmse = -1.0}).status().message(),
            "max_rmse is -1: it must be positive, or 0 for none");
  ConstTensorView q = accuracy.q();
  q.data = static_cast<const std::byte*>(q.data) + 1;
  EXPECT_EQ(plan_quantization(q, accuracy.k(), accuracy.v(), {}).status().message(),
            "q's pointer must be aligned to its 4-byte elements");
  q = accuracy.q();
  q.shape[1] = q.shape[2] = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(plan_quantization(q, accuracy.k(), accuracy.v(), {}).status().code(), StatusCode::invalid_argument);
  ConstTensorView k = accuracy.k();
  k.shape[3] = 64;
  EXPECT_EQ(plan_quantization(accuracy.q(), k, accuracy.v(), {}).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace strobe::test
