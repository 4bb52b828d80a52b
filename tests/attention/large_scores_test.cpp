// SPDX-License-Identifier: Apache-2.0
// Scores of any finite size: probabilities are made of differences of scores, which are exact where they matter.
#include "large_scores.h"

namespace strobe::test {
namespace {

INSTANTIATE_TEST_SUITE_P(DTypes, LargeScores, testing::Values(DType::float32, DType::float16, DType::bfloat16),
                         [](const testing::TestParamInfo<DType>& dtype) { return std::string(name_of(dtype.param)); });

TEST_P(LargeScores, OneKeyHasAllTheWeight) {
  for (const int exponent : sizes()) {
    for (const std::int64_t rows : kQueryCounts) {
      for (const std::int64_t count : {1, 64, 200}) {
        for (const bool row_invariant : {false, true}) {
          SCOPED_TRACE(testing::Message() << "1e" << exponent << ", " << rows << " x " << count);
          const double a = magnitude(exponent);
          std::vector<double> keys(static_cast<std::size_t>(count), -a);
          std::vector<double> p(keys.size(), 0.0);
          keys[keys.size() / 2] = a;
          p[keys.size() / 2] = 1.0;
          AttentionCase attention = queries(rows);
          attention.options.row_invariant = row_invariant;
          LargeScoresCall call(attention, a, keys);
          call.run();
          call.expect_probabilities(p, a * a);
        }
      }
    }
  }
}

TEST_P(LargeScores, EqualKeysShareTheWeight) {
  for (const int exponent : sizes()) {
    for (const std::int64_t rows : kQueryCounts) {
      for (const double sign : {1.0, -1.0}) {
        SCOPED_TRACE(testing::Message() << sign << "e" << exponent << ", " << rows);
        const double a = magnitude(exponent);
        // Seven of the largest and others, which scale -1 turns over.
        std::vector<double> keys(130, -sign * a);
        std::vector<double> p(130, 0.0);
        for (std::size_t i = 3; i < 130; i += 20) {
          keys[i] = sign * a;
          p[i] = 1.0 / 7.0;
        }
        AttentionCase attention = queries(rows);
        attention.options.scale = static_cast<float>(sign);
        LargeScoresCall call(attention, a, keys);
        call.run();
        call.expect_probabilities(p, a * a + std::log(7.0));
      }
    }
  }
}

TEST_P(LargeScores, ASinkOfTheSameSizeIsOneMoreKey) {
  for (const int exponent : sizes()) {
    for (const std::int64_t rows : kQueryCounts) {
      SCOPED_TRACE(testing::Message() << "1e" << exponent << ", " << rows);
      const double a = magnitude(exponent);
      AttentionCase attention = queries(rows);
      attention.has_sink = true;
      LargeScoresCall call(attention, a, {a, -a, a});
      call.tensors.sink.set(0, a * a);
      call.run();
      call.expect_probabilities({1.0 / 3, 0.0, 1.0 / 3}, a * a + std::log(3.0));
      double d_sink = 0.0;
      for (std::int64_t i = 0; i < call.tensors.o.size(); ++i) {
        d_sink -= call.tensors.o.get(i) * call.tensors.d_o.get(i) / 3;
      }
      EXPECT_NEAR(call.tensors.d_sink.get(0), d_sink, 1e-3 * static_cast<double>(rows));
    }
  }
}

TEST_P(LargeScores, ALargeScaleOrSoftcap) {
  for (const std::int64_t rows : kQueryCounts) {
    AttentionCase attention = queries(rows);
    attention.options.scale = 1e10F;
    LargeScoresCall hard(attention, 1.0, {2.0, 1.0, 2.0, -4.0});
    hard.run();
    hard.expect_probabilities({0.5, 0.0, 0.5, 0.0}, 2.0 * 1e10F);
    attention.options.scale = 1.0F;
    attention.options.softcap = 3e38F;
    LargeScoresCall capped(attention, 1.0, {2.0, 1.0});
    capped.run();
    const double p = 1.0 / (1.0 + std::exp(-1.0));
    capped.expect_probabilities({p, 1.0 - p}, 2.0 - std::log(p));
  }
}

TEST_P(LargeScores, RowsMaskedByAFiniteBiasTakeTheMean) {
  for (const double value : {-1e4, -1e5, -1e9, -1e20, -1e30, -2.3e38, -kLargestFloat}) {
    for (const std::int64_t rows : kQueryCounts) {
      for (const Alibi alibi : {Alibi::none, Alibi::per_head}) {
        SCOPED_TRACE(testing::Message() << value << ", " << rows);
        AttentionCase attention = queries(rows);
        attention.bias = BiasCase{};
        attention.alibi = alibi;
        LargeScoresCall call(attention, 1.0, std::vector<double>(77, 2.0));
        for (std::int64_t i = 0; i < call.tensors.bias.size(); ++i) call.tensors.bias.set(i, value);
        for (std::int64_t i = 0; i < call.tensors.alibi_slopes.size(); ++i) call.tensors.alibi_slopes.set(i, 0.0);
        call.run();
        const double score = value > -1e8 ? value + 2.0 : value;
        call.expect_probabilities(std::vector<double>(77, 1.0 / 77), score + std::log(77.0));
      }
    }
  }
}

TEST_P(LargeScores, TheLargestBiasPicksItsKey) {
  for (const std::int64_t rows : kQueryCounts) {
    AttentionCase attention = queries(rows);
    attention.bias = BiasCase{};
    LargeScoresCall call(attention, 1.0, std::vector<double>(50, 2.0));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t key = 0; key < 50; ++key) {
        call.tensors.bias.set(row * 50 + key, key == 30 ? kLargestFloat : -kLargestFloat);
      }
    }
    call.run();
    std::vector<double> p(50, 0.0);
    p[30] = 1.0;
    call.expect_probabilities(p, kLargestFloat);
  }
}

// LSE of a row of which the call has a part of the keys: it stays what it is.
TEST_P(LargeScores, AnotherLseIsTakenAsItIs) {
  LargeScoresCall call(queries(40), 64.0, {64.0, 64.0});
  call.run();
  for (std::int64_t row = 0; row < 40; ++row) call.tensors.lse.set(row, 4096.0 + std::log(4.0));
  ASSERT_TRUE(backward(call.tensors.backward_arguments(), {.scale = 1.0F}).ok());
  for (std::int64_t c = 0; c < kColumns; ++c) {
    double sum = 0.0;
    for (std::int64_t row = 0; row < 40; ++row) sum += call.tensors.d_o.get(row * kColumns + c);
    EXPECT_NEAR(call.tensors.dv.get(c), sum / 4, 0.02 * 40 * 0.25);
  }
}

}  // namespace
}  // namespace strobe::test
