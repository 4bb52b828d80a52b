// SPDX-License-Identifier: Apache-2.0
// Scores of any finite size: probabilities are made of differences of scores, which are exact where they matter.
// Products here are small integers times powers of two, which float32 sums exactly, so that right results are known at
// any size.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "case_tensors.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kColumns = 16;
constexpr double kLargestFloat = std::numeric_limits<float>::max();

// Queries of the tests: few, and as many as tiles take.
constexpr std::int64_t kQueryCounts[] = {1, 5, 40};

struct ScoreTolerance {
  double o;         // of |v| up to 2
  double gradient;  // relative to the sum of |dO|
};

ScoreTolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::float16: return {0x1p-9, 0x1p-8};
    case DType::bfloat16: return {0x1p-6, 0x1p-5};
    default: return {0x1p-20, 0x1p-18};
  }
}

/// One head whose scores are query * key: the first column alone is not 0.
class LargeScoresCall {
 public:
  LargeScoresCall(AttentionCase attention, double query, const std::vector<double>& keys)
      : attention_(completed(std::move(attention), keys)), tensors(attention_), keys_(keys) {
    for (std::int64_t i = 0; i < tensors.q.size(); ++i) tensors.q.set(i, i % kColumns == 0 ? query : 0.0);
    for (std::int64_t i = 0; i < tensors.k.size(); ++i) tensors.k.set(i, i % kColumns == 0 ? keys[i / kColumns] : 0.0);
    for (std::int64_t i = 0; i < tensors.v.size(); ++i)
      tensors.v.set(i, static_cast<double>((i * 7 + i / 16) % 9) / 4 - 1);
    for (std::int64_t i = 0; i < tensors.d_o.size(); ++i) tensors.d_o.set(i, static_cast<double>(i * 5 % 7) / 4 - 0.5);
    for (std::int64_t i = 0; i < tensors.bias.size(); ++i) tensors.bias.set(i, 0.0);
  }

  void run() {
    const Status forward_status = forward(tensors.forward_arguments(), attention_.options);
    ASSERT_TRUE(forward_status.ok()) << forward_status.message();
    if (attention_.options.row_invariant) return;
    const Status backward_status = backward(tensors.backward_arguments(), attention_.options);
    ASSERT_TRUE(backward_status.ok()) << backward_status.message();
  }

  /// Every row has these probabilities. dS is checked where `with_d_scores`: dK of the first column is the sum over the
  /// queries of dS times the query and the scale.
  void expect_probabilities(const std::vector<double>& p, double lse) {
    const ScoreTolerance tolerance = tolerance_of(attention_.dtype);
    const std::int64_t rows = attention_.q.rows;
    std::vector<double> d_v(tensors.v.size(), 0.0);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t c = 0; c < kColumns; ++c) {
        double o = 0.0;
        for (std::size_t j = 0; j < keys_.size(); ++j) {
          o += p[j] * tensors.v.get(static_cast<std::int64_t>(j) * kColumns + c);
          d_v[j * kColumns + c] += p[j] * tensors.d_o.get(row * kColumns + c);
        }
        EXPECT_NEAR(tensors.o.get(row * kColumns + c), o, tolerance.o) << "row " << row << " column " << c;
      }
      EXPECT_NEAR(tensors.lse.get(row), lse, std::fabs(lse) * 0x1p-23 + 0x1p-20) << "row " << row;
    }
    if (attention_.options.row_invariant) return;
    for (std::int64_t i = 0; i < tensors.dv.size(); ++i) {
      EXPECT_NEAR(tensors.dv.get(i), d_v[i], tolerance.gradient * 1.5 * static_cast<double>(rows)) << "dv " << i;
    }
    for (std::int64_t i = 0; i < tensors.dq.size(); ++i) {
      EXPECT_TRUE(std::isfinite(tensors.dq.get(i))) << "dq " << i;
    }
  }

 private:
  static AttentionCase completed(AttentionCase attention, const std::vector<double>& keys) {
    attention.head_dim = attention.head_dim_v = kColumns;
    attention.k.rows = static_cast<std::int64_t>(keys.size());
    if (!attention.options.scale) attention.options.scale = 1.0F;
    attention.has_d_lse = false;
    return attention;
  }

  AttentionCase attention_;

 public:
  CaseTensors tensors;

 private:
  std::vector<double> keys_;
};

class LargeScores : public testing::TestWithParam<DType> {
 protected:
  static AttentionCase queries(std::int64_t rows) {
    AttentionCase attention{.dtype = GetParam()};
    attention.q.rows = rows;
    return attention;
  }
  /// Powers of two whose square is near 10^exponent, within the dtype.
  static double magnitude(int exponent) { return std::exp2(std::round(exponent * std::log2(10.0) / 2)); }
  /// Powers of ten that scores reach.
  static std::vector<int> sizes() {
    return GetParam() == DType::float16 ? std::vector{2, 4, 6, 8, 9} : std::vector{2, 4, 5, 6, 8, 9, 10, 12, 20, 30};
  }
};

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
