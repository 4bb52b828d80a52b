// SPDX-License-Identifier: Apache-2.0
// Which of the measured candidates a tune takes.
#include "tools/strobe/tune_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace strobe::program {
namespace {

constexpr gpu::Choice kFirst{.section_heads = 8};
constexpr gpu::Choice kSecond{.section_heads = 4};

/// The rule's rounds, and those of up to two others.
std::vector<MeasuredCandidate> measured(const std::vector<double>& rule, const std::vector<double>& first,
                                        const std::vector<double>& second = {}) {
  std::vector<MeasuredCandidate> all = {{{{}, 1.0}, rule}, {{kFirst, 1.0}, first}};
  if (!second.empty()) all.push_back({{kSecond, 1.0}, second});
  return all;
}

TEST(TuneChoice, TakesWhatIsSurelyFaster) {
  const TunedResult result = choose_measured(measured({1.0, 1.1, 1.2, 1.1, 1.0}, {0.9, 1.0, 1.1, 1.0, 1.4}), {});
  EXPECT_EQ(result.index, 1U);
  EXPECT_DOUBLE_EQ(result.gain, 1.1);
  EXPECT_DOUBLE_EQ(result.milliseconds, 1.0);
}

TEST(TuneChoice, KeepsTheRuleWithinTwoPercent) {
  const TunedResult result = choose_measured(measured({1.01, 1.01, 1.01}, {1.0, 1.0, 1.0}), {});
  EXPECT_EQ(result.index, 0U);
  EXPECT_EQ(result.gain, 1.0);
}

/// Clocks that fall and rise again: each round says that the other plan is 5% faster, but one, and medians that it is
/// slower.
TEST(TuneChoice, OfRoundsThatDriftBothComparisonsCount) {
  const std::vector<double> rule = {1.05, 1.05, 1.05, 1.00, 1.575, 1.575, 1.575};
  const std::vector<double> other = {1.00, 1.00, 1.00, 1.40, 1.50, 1.50, 1.50};
  const TunedResult by_rounds = choose_measured(measured(rule, other), {});
  EXPECT_EQ(by_rounds.index, 0U);
  EXPECT_EQ(by_rounds.gain, 1.0);
  // And medians that it is faster, where two of the rounds deny it.
  const TunedResult by_medians = choose_measured(measured({1.1, 1.1, 1.1, 1.0, 1.0}, {1.0, 1.0, 1.0, 1.0, 1.0}), {});
  EXPECT_EQ(by_medians.index, 0U);
}

TEST(TuneChoice, AnEarlierChoiceStandsWhileItIsFasterThanTheRule) {
  const std::vector<double> rule = {1.00, 1.00, 1.00};
  const TunedResult kept = choose_measured(measured(rule, {0.98, 0.98, 0.98}, {0.97, 0.97, 0.97}), kFirst);
  EXPECT_EQ(kept.index, 1U);
  EXPECT_GT(kept.gain, 1.0);
  const TunedResult gone = choose_measured(measured(rule, {1.002, 1.002, 1.002}), kFirst);
  EXPECT_EQ(gone.index, 0U);
  EXPECT_EQ(gone.gain, 1.0);
  EXPECT_EQ(choose_measured(measured(rule, {0.98, 0.98, 0.98}, {0.9, 0.9, 0.9}), kFirst).index, 2U);
}

TEST(TuneChoice, OfEquallyFastOnesTheModelsFirst) {
  EXPECT_EQ(choose_measured(measured({1.0, 1.0, 1.0}, {0.81, 0.81, 0.81}, {0.8, 0.8, 0.8}), {}).index, 1U);
}

}  // namespace
}  // namespace strobe::program
