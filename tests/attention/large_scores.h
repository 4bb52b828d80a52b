// SPDX-License-Identifier: Apache-2.0
// A call whose scores are of any finite size and whose right results are known: products are small integers times
// powers of two, which float32 sums exactly.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "case_tensors.h"

namespace strobe::test {

inline constexpr std::int64_t kColumns = 16;  // unless a test asks for others
inline constexpr double kLargestFloat = std::numeric_limits<float>::max();

// Queries of the tests: few, and as many as tiles take.
inline constexpr std::int64_t kQueryCounts[] = {1, 5, 40};

struct ScoreTolerance {
  double o;         // of |v| up to 2
  double gradient;  // relative to the sum of what is summed
};

inline ScoreTolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::float16: return {0x1p-9, 0x1p-8};
    case DType::bfloat16: return {0x1p-6, 0x1p-5};
    default: return {0x1p-20, 0x1p-18};
  }
}

/// One head of `columns` columns whose scores are query * key: the first column alone is not 0.
class LargeScoresCall {
 public:
  LargeScoresCall(AttentionCase attention, double query, const std::vector<double>& keys,
                  std::int64_t columns = kColumns)
      : attention_(completed(std::move(attention), keys, columns)),
        tensors(attention_),
        columns_(columns),
        query_(query),
        keys_(keys) {
    for (std::int64_t i = 0; i < tensors.q.size(); ++i) tensors.q.set(i, i % columns == 0 ? query : 0.0);
    for (std::int64_t i = 0; i < tensors.k.size(); ++i) tensors.k.set(i, i % columns == 0 ? keys[i / columns] : 0.0);
    for (std::int64_t i = 0; i < tensors.v.size(); ++i)
      tensors.v.set(i, static_cast<double>((i * 7 + i / columns) % 9) / 4 - 1);
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

  /// Every row has these probabilities and this LSE.
  void expect_probabilities(const std::vector<double>& p, double lse) {
    const double tolerance = tolerance_of(attention_.dtype).o;
    for (std::int64_t row = 0; row < attention_.q.rows; ++row) {
      for (std::int64_t c = 0; c < columns_; ++c) {
        double o = 0.0;
        for (std::size_t j = 0; j < keys_.size(); ++j) o += p[j] * value(j, c);
        EXPECT_NEAR(tensors.o.get(row * columns_ + c), o, tolerance) << "row " << row << " column " << c;
      }
      EXPECT_NEAR(tensors.lse.get(row), lse, std::fabs(lse) * 0x1p-23 + 0x1p-20) << "row " << row;
    }
    if (!attention_.options.row_invariant) expect_gradients(p);
  }

  /// The largest score of all.
  void expect_max_logit(double score) {
    EXPECT_NEAR(tensors.max_logits.get(0), score, std::fabs(score) * 0x1p-23 + 0x1p-20);
  }

 private:
  double value(std::size_t key, std::int64_t c) const {
    return tensors.v.get(static_cast<std::int64_t>(key) * columns_ + c);
  }

  /// dV = P^T dO; dS = P (dP - sum P dP), which d_bias is; dQ = dS K and dK = dS^T Q, times the scale.
  void expect_gradients(const std::vector<double>& p) {
    const auto rows = static_cast<double>(attention_.q.rows);
    const auto count = static_cast<std::int64_t>(keys_.size());
    const double scale = static_cast<double>(*attention_.options.scale);
    const double tolerance = tolerance_of(attention_.dtype).gradient * 1.5;
    // |dP| and its mean are up to the sum of |dO| |v|.
    const double of_score = tolerance * static_cast<double>(columns_);
    double largest_key = 0.0;
    for (const double key : keys_) largest_key = std::max(largest_key, std::fabs(key));
    std::vector<double> d_v(tensors.v.size(), 0.0);
    std::vector<double> d_k(keys_.size(), 0.0);
    for (std::int64_t row = 0; row < attention_.q.rows; ++row) {
      const std::vector<double> d_s = score_gradients(p, row);
      double d_q = 0.0;
      for (std::int64_t j = 0; j < count; ++j) {
        for (std::int64_t c = 0; c < columns_; ++c) d_v[j * columns_ + c] += p[j] * tensors.d_o.get(row * columns_ + c);
        d_q += d_s[j] * keys_[j] * scale;
        d_k[j] += d_s[j] * query_ * scale;
        if (tensors.d_bias.size() > 0) {
          EXPECT_NEAR(tensors.d_bias.get(row * count + j), d_s[j], of_score) << "d_bias " << row << ' ' << j;
        }
      }
      expect_near(tensors.dq.get(row * columns_), d_q, of_score * largest_key * std::fabs(scale), "dq", row);
      for (std::int64_t c = 1; c < columns_; ++c) EXPECT_EQ(tensors.dq.get(row * columns_ + c), 0.0) << "dq " << row;
    }
    for (std::int64_t i = 0; i < tensors.dv.size(); ++i) {
      EXPECT_NEAR(tensors.dv.get(i), d_v[i], tolerance * rows) << "dv " << i;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      expect_near(tensors.dk.get(j * columns_), d_k[j], of_score * rows * std::fabs(query_ * scale), "dk", j);
      for (std::int64_t c = 1; c < columns_; ++c) EXPECT_EQ(tensors.dk.get(j * columns_ + c), 0.0) << "dk " << j;
    }
  }

  /// A gradient that float16 does not hold is infinite.
  void expect_near(double actual, double wanted, double tolerance, const char* name, std::int64_t index) const {
    constexpr double kLargestFloat16 = 65504.0;
    if (attention_.dtype == DType::float16 && std::fabs(wanted) > kLargestFloat16) {
      EXPECT_EQ(actual, std::copysign(kInfinity, wanted)) << name << ' ' << index;
    } else {
      EXPECT_NEAR(actual, wanted, tolerance) << name << ' ' << index;
    }
  }

  std::vector<double> score_gradients(const std::vector<double>& p, std::int64_t row) const {
    std::vector<double> d_s(keys_.size(), 0.0);
    double mean = 0.0;
    for (std::size_t j = 0; j < keys_.size(); ++j) {
      for (std::int64_t c = 0; c < columns_; ++c) d_s[j] += value(j, c) * tensors.d_o.get(row * columns_ + c);
      mean += p[j] * d_s[j];
    }
    for (std::size_t j = 0; j < keys_.size(); ++j) d_s[j] = p[j] * (d_s[j] - mean);
    return d_s;
  }

  static AttentionCase completed(AttentionCase attention, const std::vector<double>& keys, std::int64_t columns) {
    attention.head_dim = attention.head_dim_v = columns;
    attention.k.rows = static_cast<std::int64_t>(keys.size());
    if (!attention.options.scale) attention.options.scale = 1.0F;
    attention.has_d_lse = false;
    return attention;
  }

  AttentionCase attention_;

 public:
  CaseTensors tensors;

  const AttentionCase& attention() const { return attention_; }

 private:
  std::int64_t columns_;
  double query_;
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

}  // namespace strobe::test
