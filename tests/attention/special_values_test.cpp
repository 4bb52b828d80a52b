// SPDX-License-Identifier: Apache-2.0
// NaN and infinity: a hidden pair of query and key reaches nothing, whatever it holds; a visible one does what IEEE
// arithmetic says. The table is in docs/accuracy.md.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "matches_reference.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kSeqlen = 150;  // several tiles in both directions
constexpr std::int64_t kHeadDim = 24;

AttentionCase plain(DType dtype) {
  AttentionCase attention{.dtype = dtype, .heads_q = 2, .heads_kv = 1, .head_dim = kHeadDim, .head_dim_v = kHeadDim};
  attention.q.rows = kSeqlen;
  attention.k.rows = kSeqlen;
  attention.seed = 3;
  return attention;
}

std::vector<AttentionCase> masks(DType dtype) {
  std::vector<AttentionCase> cases(11, plain(dtype));
  cases[1].options.causal = CausalMask::bottom_right;
  cases[2].options.causal = CausalMask::top_left;
  cases[2].k.rows = 100;
  cases[3].options.window = {10, 5};
  cases[4].options = {.causal = CausalMask::bottom_right, .window = {40, -1}, .softcap = 5.0F};
  cases[5].q = {.rows = kSeqlen, .cu_seqlens = {0, 70, 140}};
  cases[5].k = {.rows = kSeqlen, .cu_seqlens = {0, 80, 150}, .seqused = {80, 41}};
  cases[5].batch = 2;
  cases[6].options.chunk = 40;
  cases[7].blocks = {.size = 64, .sharing = {.per_head = true}};
  cases[8].blocks = {.size = 64};
  cases[8].options = {.causal = CausalMask::bottom_right, .chunk = 100};
  cases[8].alibi = Alibi::per_head;
  cases[8].bias = {.dtype = dtype};
  cases[8].has_sink = true;
  cases[9].options.causal = CausalMask::bottom_right;
  cases[9].q.rows = cases[9].k.rows = 80;  // the reference takes long over many columns
  cases[9].head_dim = cases[9].head_dim_v = 512;
  cases[10].options = {.causal = CausalMask::bottom_right, .window = {40, -1}};
  cases[10].has_qv = true;
  return cases;
}

class SpecialValues : public testing::TestWithParam<DType> {
 protected:
  /// Sets one element of a row and compares with the reference, which never looks at a hidden pair, under every mask.
  /// Rows are those of all heads.
  static void expect_matches_with(GuardedTensor CaseTensors::* input, std::int64_t row, double value) {
    for (const AttentionCase& attention : masks(GetParam())) {
      SCOPED_TRACE(describe(attention));
      CaseTensors tensors(attention);
      const std::int64_t index = input == &CaseTensors::d_lse ? row : row * attention.head_dim + 5;
      if (index >= (tensors.*input).size()) continue;
      (tensors.*input).set(index, value);
      expect_tensors_match_reference(tensors, attention);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, SpecialValues, testing::Values(DType::float32, DType::float16, DType::bfloat16),
                         [](const testing::TestParamInfo<DType>& dtype) { return std::string(name_of(dtype.param)); });

// Elements of rows at the edges and in the middle of tiles.
constexpr std::int64_t kKeys[] = {0, 1, 15, 64, 99, 149};

TEST_P(SpecialValues, NaNInAKeyStaysWithTheQueriesThatSeeIt) {
  for (const std::int64_t key : kKeys) expect_matches_with(&CaseTensors::k, key, kNaN);
}

TEST_P(SpecialValues, NaNInAValueStaysInItsColumnOfTheQueriesThatSeeIt) {
  for (const std::int64_t key : kKeys) expect_matches_with(&CaseTensors::v, key, kNaN);
}

TEST_P(SpecialValues, NaNInAQueryStaysWithTheKeysThatItSees) {
  for (const std::int64_t query : kKeys) expect_matches_with(&CaseTensors::q, query * 2, kNaN);
}

TEST_P(SpecialValues, NaNInASecondQueryStaysWithTheKeysThatItSees) {
  for (const std::int64_t query : kKeys) expect_matches_with(&CaseTensors::qv, query * 2, kNaN);
}

TEST_P(SpecialValues, NaNInAnOutputGradientStaysWithTheKeysThatItsQuerySees) {
  for (const std::int64_t query : kKeys) expect_matches_with(&CaseTensors::d_o, query * 2, kNaN);
}

TEST_P(SpecialValues, NaNInAnLseGradientStaysWithTheKeysThatItsQuerySees) {
  for (const std::int64_t query : kKeys) expect_matches_with(&CaseTensors::d_lse, query, kNaN);
}

TEST_P(SpecialValues, InfinityInAQuery) {
  for (const double value : {kInfinity, -kInfinity}) {
    expect_matches_with(&CaseTensors::q, 64 * 2, value);
    expect_matches_with(&CaseTensors::qv, 64 * 2, value);
  }
}

TEST_P(SpecialValues, InfinityInAKey) {
  for (const double value : {kInfinity, -kInfinity}) expect_matches_with(&CaseTensors::k, 64, value);
}

TEST_P(SpecialValues, InfinityInAValue) {
  for (const double value : {kInfinity, -kInfinity}) expect_matches_with(&CaseTensors::v, 64, value);
}

TEST_P(SpecialValues, InfinityInAnOutputGradient) {
  for (const double value : {kInfinity, -kInfinity}) {
    expect_matches_with(&CaseTensors::d_o, 64 * 2, value);
  }
}

// One query, two keys, head_dim 1: scores (q k_0, q k_1).
struct TwoKeysResult {
  double o;
  double lse;
};

TwoKeysResult run_two_keys(DType dtype, double q, double k_0, double k_1, double v_0, double v_1,
                           float softcap = 0.0F) {
  AttentionCase attention{.dtype = dtype, .head_dim = 1, .head_dim_v = 1, .q = {.rows = 1}, .k = {.rows = 2}};
  attention.options.softcap = softcap;
  CaseTensors tensors(attention);
  tensors.q.set(0, q);
  tensors.k.set(0, k_0);
  tensors.k.set(1, k_1);
  tensors.v.set(0, v_0);
  tensors.v.set(1, v_1);
  const Status status = forward(tensors.forward_arguments(), attention.options);
  EXPECT_TRUE(status.ok()) << status.message();
  return {tensors.o.get(0), tensors.lse.get(0)};
}

TEST_P(SpecialValues, AScoreOfMinusInfinityHasNoWeight) {
  const TwoKeysResult result = run_two_keys(GetParam(), 1.0, -kInfinity, 2.0, 7.0, 3.0);
  EXPECT_EQ(result.o, 3.0);
  EXPECT_EQ(result.lse, 2.0);
}

TEST_P(SpecialValues, ARowOfMinusInfinitiesSeesNoKey) {
  const TwoKeysResult result = run_two_keys(GetParam(), 1.0, -kInfinity, -kInfinity, 7.0, 3.0);
  EXPECT_EQ(result.o, 0.0);
  EXPECT_EQ(result.lse, -kInfinity);
}

TEST_P(SpecialValues, AScoreOfPlusInfinityGivesNaN) {
  const TwoKeysResult result = run_two_keys(GetParam(), 1.0, kInfinity, 2.0, 7.0, 3.0);
  EXPECT_TRUE(std::isnan(result.o));
  EXPECT_TRUE(std::isnan(result.lse));
}

TEST_P(SpecialValues, AScoreOfNaNGivesNaNWhereverItStands) {
  for (const auto& [k_0, k_1] : {std::pair{kNaN, 1.0}, {1.0, kNaN}, {kNaN, kNaN}, {kNaN, -kInfinity}}) {
    for (const float softcap : {0.0F, 2.0F}) {
      const TwoKeysResult result = run_two_keys(GetParam(), 1.0, k_0, k_1, 7.0, 3.0, softcap);
      EXPECT_TRUE(std::isnan(result.o)) << k_0 << ' ' << k_1;
      EXPECT_TRUE(std::isnan(result.lse)) << k_0 << ' ' << k_1;
    }
  }
}

TEST_P(SpecialValues, ValuesKeepTheirInfinities) {
  EXPECT_EQ(run_two_keys(GetParam(), 1.0, 1.0, 2.0, kInfinity, 3.0).o, kInfinity);
  EXPECT_EQ(run_two_keys(GetParam(), 1.0, 1.0, 2.0, 3.0, -kInfinity).o, -kInfinity);
  EXPECT_TRUE(std::isnan(run_two_keys(GetParam(), 1.0, 1.0, 2.0, kInfinity, -kInfinity).o));
}

TEST_P(SpecialValues, SoftcapMakesInfiniteScoresFinite) {
  const TwoKeysResult result = run_two_keys(GetParam(), 1.0, kInfinity, -kInfinity, 8.0, 0.0, 2.0F);
  const double p = 1.0 / (1.0 + std::exp(-4.0));  // scores 2 and -2
  EXPECT_NEAR(result.o, 8.0 * p, 8.0 * 0x1p-8);
  EXPECT_NEAR(result.lse, 2.0 - std::log(p), 1e-5);
}

// Every bias of a hidden pair is NaN in these cases already; here, one of a visible pair or of any pair at all.
TEST_P(SpecialValues, ABiasThatIsNoNumberStaysWithItsQuery) {
  for (const double value : {kNaN, kInfinity, -kInfinity}) {
    for (const std::int64_t at : {std::int64_t{0}, 64 * kSeqlen + 3, kSeqlen * kSeqlen - 1}) {
      AttentionCase attention = masks(GetParam())[8];
      CaseTensors tensors(attention);
      tensors.bias.set(at, value);
      SCOPED_TRACE(value);
      expect_tensors_match_reference(tensors, attention);
    }
  }
}

TEST_P(SpecialValues, ASlopeThatIsNaNStaysWithItsHead) {
  AttentionCase attention = plain(GetParam());
  attention.alibi = Alibi::per_head;
  CaseTensors tensors(attention);
  tensors.alibi_slopes.set(1, kNaN);
  ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
  for (std::int64_t row = 0; row < kSeqlen; ++row) {
    EXPECT_TRUE(std::isfinite(tensors.o.get(row * 2 * kHeadDim)));
    EXPECT_TRUE(std::isnan(tensors.o.get((row * 2 + 1) * kHeadDim)));
    EXPECT_TRUE(std::isnan(tensors.lse.get(kSeqlen + row)));
  }
}

TEST_P(SpecialValues, ASinkThatIsNoNumberStaysWithItsHead) {
  for (const double value : {kNaN, kInfinity}) {
    AttentionCase attention = plain(GetParam());
    attention.has_sink = true;
    CaseTensors tensors(attention);
    tensors.sink.set(1, value);
    ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
    for (std::int64_t row = 0; row < kSeqlen; ++row) {
      EXPECT_TRUE(std::isfinite(tensors.o.get(row * 2 * kHeadDim))) << value;
      EXPECT_TRUE(std::isnan(tensors.o.get((row * 2 + 1) * kHeadDim))) << value;
      EXPECT_TRUE(std::isnan(tensors.lse.get(kSeqlen + row))) << value;
    }
  }
}

TEST_P(SpecialValues, ASinkOfMinusInfinityIsNone) {
  AttentionCase attention = plain(GetParam());
  attention.options.causal = CausalMask::bottom_right;
  attention.k.rows = 90;  // the first 60 queries see nothing
  CaseTensors without(attention);
  attention.has_sink = true;
  CaseTensors with(attention);
  for (std::int64_t head = 0; head < 2; ++head) with.sink.set(head, -kInfinity);
  for (std::int64_t index = 0; index < with.d_o.size(); ++index) {
    without.d_o.set(index, 0.5);
    with.d_o.set(index, 0.5);
  }
  for (std::int64_t index = 0; index < with.d_lse.size(); ++index) {
    without.d_lse.set(index, 0.25);
    with.d_lse.set(index, 0.25);
  }
  for (std::int64_t index = 0; index < with.q.size(); ++index) with.q.set(index, without.q.get(index));
  for (std::int64_t index = 0; index < with.k.size(); ++index) {
    with.k.set(index, without.k.get(index));
    with.v.set(index, without.v.get(index));
  }
  for (CaseTensors* tensors : {&without, &with}) {
    ASSERT_TRUE(forward(tensors->forward_arguments(), attention.options).ok());
    ASSERT_TRUE(backward(tensors->backward_arguments(), attention.options).ok());
  }
  for (std::int64_t index = 0; index < with.o.size(); ++index) EXPECT_EQ(with.o.get(index), without.o.get(index));
  for (std::int64_t row = 0; row < 60; ++row) EXPECT_EQ(with.lse.get(row), -kInfinity);
  for (std::int64_t index = 0; index < with.dk.size(); ++index) EXPECT_EQ(with.dk.get(index), without.dk.get(index));
  for (std::int64_t head = 0; head < 2; ++head) EXPECT_EQ(with.d_sink.get(head), 0.0);
}

TEST_P(SpecialValues, RowsThatSeeNoKeyAreZeroWithLseMinusInfinity) {
  AttentionCase attention = plain(GetParam());
  attention.options.causal = CausalMask::bottom_right;
  attention.k.rows = 90;  // the first 60 queries see nothing
  CaseTensors tensors(attention);
  ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
  ASSERT_TRUE(backward(tensors.backward_arguments(), attention.options).ok());
  for (std::int64_t index = 0; index < 60 * 2 * kHeadDim; ++index) {
    EXPECT_EQ(tensors.o.get(index), 0.0);
    EXPECT_EQ(tensors.dq.get(index), 0.0);
  }
  for (std::int64_t head = 0; head < 2; ++head) {
    for (std::int64_t query = 0; query < 60; ++query) EXPECT_EQ(tensors.lse.get(head * kSeqlen + query), -kInfinity);
  }
}

}  // namespace
}  // namespace strobe::test
