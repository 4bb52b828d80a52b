// SPDX-License-Identifier: Apache-2.0
// What the values of texts depend on within a tile, and which of them kernels keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "expression/formula.h"
#include "expression/print.h"

namespace strobe::test {
namespace {

using expression::Formula;
using expression::Id;
using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<expression::Capture> kRead = {{"slope", DType::float32, 1},
                                                {"bias", DType::float32, 2},
                                                {"bucket", DType::int32, 1},
                                                {"gate", DType::float32, 3},
                                                {"document", DType::int32, 2}};

std::shared_ptr<const Formula> formula_of(const std::string& score, const std::string& mask) {
  const auto formula = Formula::parse(score, mask, kRead);
  EXPECT_TRUE(formula.ok()) << formula.status().message();
  return *formula;
}

std::vector<std::string> texts(const Formula& formula, const std::vector<Id>& ids) {
  std::vector<std::string> all;
  for (const Id id : ids) all.push_back(expression::text_of(formula.graph(), id, formula.captures()));
  return all;
}

TEST(KeptValues, AreThoseOfDiagonals) {
  for (const std::string term : {"bias[head][k - q + 511]", "bias[head][bucket[max(q - k, 0)]]"}) {
    const auto formula = formula_of("score + " + term, "k <= q");
    EXPECT_EQ(formula->kept().diagonal.size(), 1U) << term;
    EXPECT_THAT(formula->kept().tile, IsEmpty()) << term;
    EXPECT_THAT(formula->kept().query, IsEmpty()) << term;
    EXPECT_THAT(formula->kept().key, IsEmpty()) << term;
  }
}

TEST(KeptValues, AreThoseOfQueriesAndKeys) {
  const auto forgetting = formula_of("score + gate[batch][head][q] - gate[batch][head][k]", "");
  EXPECT_THAT(texts(*forgetting, forgetting->kept().query), ElementsAre("gate[batch][head][q]"));
  EXPECT_EQ(forgetting->kept().key.size(), 1U);
  const auto documents = formula_of("", "k <= q && document[batch][k] == document[batch][q]");
  EXPECT_THAT(texts(*documents, documents->kept().query), ElementsAre("document[batch][q]"));
  EXPECT_THAT(texts(*documents, documents->kept().key), ElementsAre("document[batch][k]"));
}

TEST(KeptValues, AreThoseOfATileInWhatIsNotKept) {
  const auto formula = formula_of("score * slope[head]", "k < document[batch][0] || k <= q");
  EXPECT_THAT(texts(*formula, formula->kept().tile),
              testing::UnorderedElementsAre("slope[head]", "document[batch][0]"));
  EXPECT_THAT(formula->kept().key, IsEmpty());  // one comparison
}

TEST(KeptValues, AreThoseOfOneOfTheTexts) {
  const auto formula = formula_of("score * slope[head]", "k < document[batch][0] || k <= q");
  EXPECT_THAT(texts(*formula, formula->kept({.score = true}).tile), ElementsAre("slope[head]"));
  EXPECT_THAT(texts(*formula, formula->kept({.mask = true}).tile), ElementsAre("document[batch][0]"));
}

TEST(KeptValues, AreNoneOfFewInstructions) {
  const auto slopes = formula_of("score + slope[head] * (k - q)", "");
  EXPECT_THAT(slopes->kept().diagonal, IsEmpty());
  EXPECT_THAT(texts(*slopes, slopes->kept().tile), ElementsAre("slope[head]"));
  const auto formula = formula_of("2 * score", "k <= q && q - k < 100");
  EXPECT_THAT(formula->kept().tile, IsEmpty());
  EXPECT_THAT(formula->kept().query, IsEmpty());
  EXPECT_THAT(formula->kept().key, IsEmpty());
  EXPECT_THAT(formula->kept().diagonal, IsEmpty());
}

TEST(KeptValues, AreTheCostliestOfTooMany) {
  const auto formula = formula_of(
      "score * float(q) + score * abs(score) * slope[q] + abs(score) * exp(slope[q]) + max(score, 1.0) * "
      "sin(slope[q + 1]) + min(score, 2.0) * slope[k]",
      "");
  EXPECT_EQ(formula->kept().query.size(), expression::kMostLineValues);
  EXPECT_THAT(texts(*formula, formula->kept().query), testing::Not(testing::Contains("float(q)")));
}

TEST(Patterns, OfAnIndexThatDependsOnTheScoreAreScattered) {
  for (const std::string read : {"slope[int(score)]", "slope[q + int(score)]", "slope[k + int(score)]",
                                 "slope[k - q + int(score)]", "bias[q][int(score)]"}) {
    const auto formula = formula_of("score + " + read, "");
    ASSERT_EQ(formula->reads().size(), 1U);
    EXPECT_EQ(formula->reads()[0].pattern, expression::Pattern::scattered) << read;
  }
}

}  // namespace
}  // namespace strobe::test
