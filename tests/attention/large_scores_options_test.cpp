// SPDX-License-Identifier: Apache-2.0
// Large scores beside the options and layouts that have code of their own: packed sequences, max_logits, ALiBi, and
// inputs in 8 bits.
#include "call/eight_bit.h"
#include "large_scores.h"

namespace strobe::test {
namespace {

class LargeScoresWith : public LargeScores {};

INSTANTIATE_TEST_SUITE_P(DTypes, LargeScoresWith, testing::Values(DType::float32, DType::float16, DType::bfloat16),
                         [](const testing::TestParamInfo<DType>& dtype) { return std::string(name_of(dtype.param)); });

TEST_P(LargeScoresWith, PackedSequencesAndMaxLogits) {
  for (const int exponent : sizes()) {
    for (const std::int64_t rows : kQueryCounts) {
      for (const bool packed : {false, true}) {
        SCOPED_TRACE(testing::Message() << "1e" << exponent << ", " << rows << (packed ? " packed" : ""));
        const double a = magnitude(exponent);
        std::vector<double> keys(70, -a);
        std::vector<double> p(70, 0.0);
        keys[11] = keys[69] = a;
        p[11] = p[69] = 0.5;
        AttentionCase attention = queries(rows);
        attention.wants_max_logits = true;
        if (packed) {
          attention.q.cu_seqlens = {0, static_cast<std::int32_t>(rows)};
          attention.k.cu_seqlens = {0, 70};
        }
        LargeScoresCall call(attention, a, keys);
        call.run();
        call.expect_probabilities(p, a * a + std::log(2.0));
        call.expect_max_logit(a * a);
      }
    }
  }
}

// One query, on the last key: a slope takes from the others, one below 0 gives to the first.
TEST_P(LargeScoresWith, LargeSlopesPickTheNearestKeyOrTheFarthest) {
  for (const double slope : {1e3, 1e6, 1e12, 1e30, -1e3, -1e6, -1e12, -1e30}) {
    for (const std::int64_t count : {1, 64, 300}) {
      SCOPED_TRACE(testing::Message() << slope << ", " << count);
      AttentionCase attention = queries(1);
      attention.alibi = Alibi::per_head;
      attention.wants_max_logits = true;
      LargeScoresCall call(attention, 1.0, std::vector<double>(static_cast<std::size_t>(count), 2.0));
      call.tensors.alibi_slopes.set(0, slope);
      call.run();
      std::vector<double> p(static_cast<std::size_t>(count), 0.0);
      (slope > 0 ? p.back() : p.front()) = 1.0;
      const double score =
          slope > 0 ? 2.0 : 2.0 - static_cast<double>(static_cast<float>(slope)) * static_cast<double>(count - 1);
      call.expect_probabilities(p, score);
      call.expect_max_logit(score);
    }
  }
}

constexpr std::int64_t kKeys = 70;

/// Keys 11 and 69 are 1, the others -1, in the first column; V is small integers.
struct EightBitKeys {
  std::vector<std::int8_t> k = std::vector<std::int8_t>(kKeys * kColumns, 0);
  std::vector<std::int8_t> v = std::vector<std::int8_t>(kKeys * kColumns);

  EightBitKeys() {
    for (std::int64_t key = 0; key < kKeys; ++key) {
      k[key * kColumns] = static_cast<std::int8_t>(key == 11 || key == 69 ? 1 : -1);
      for (std::int64_t c = 0; c < kColumns; ++c)
        v[key * kColumns + c] = static_cast<std::int8_t>((key * 5 + c) % 9 - 4);
    }
  }

  void expect_mean_of_two(const std::vector<float>& o, double lse_wanted, const std::vector<float>& lse) const {
    for (std::size_t i = 0; i < o.size(); ++i) {
      const std::size_t c = i % kColumns;
      EXPECT_NEAR(o[i], (v[11 * kColumns + c] + v[69 * kColumns + c]) / 2.0, 0.05) << i;
    }
    for (const float one : lse) EXPECT_NEAR(one, lse_wanted, std::fabs(lse_wanted) * 0x1p-22 + 0x1p-18);
  }
};

TEST(LargeScoresInEightBits, StoredKeys) {
  const EightBitKeys keys;
  for (const double a : {0x1p7, 0x1p20, 0x1p40, 0x1p60}) {
    for (const std::int64_t rows : kQueryCounts) {
      SCOPED_TRACE(testing::Message() << a << ", " << rows);
      std::vector<float> q(rows * kColumns, static_cast<float>(a)), o(rows * kColumns), lse(rows);
      const auto scale = static_cast<float>(a);
      const float one = 1.0F;
      ForwardArguments call;
      call.q = tensor(static_cast<const float*>(q.data()), {1, rows, 1, kColumns});
      call.k = tensor(keys.k.data(), {1, kKeys, 1, kColumns});
      call.v = tensor(keys.v.data(), {1, kKeys, 1, kColumns});
      call.k_descale = tensor(&scale, {1, 1, 1});
      call.v_descale = tensor(&one, {1, 1, 1});
      call.o = tensor(o.data(), {1, rows, 1, kColumns});
      call.lse = tensor(lse.data(), {1, 1, rows});
      const Status status = forward(call, {.scale = 1.0F});
      ASSERT_TRUE(status.ok()) << status.message();
      keys.expect_mean_of_two(o, a * a + std::log(2.0), lse);
    }
  }
}

TEST(LargeScoresInEightBits, Operands) {
  const EightBitKeys keys;
  const std::int64_t columns = round_up(kKeys, kValueKeys);
  std::vector<std::int8_t> v(kColumns * columns, 0);
  for (std::int64_t key = 0; key < kKeys; ++key) {
    for (std::int64_t c = 0; c < kColumns; ++c) v[c * columns + value_position(key)] = keys.v[key * kColumns + c];
  }
  for (const double a : {0x1p7, 0x1p20, 0x1p40, 0x1p60}) {
    for (const std::int64_t rows : kQueryCounts) {
      SCOPED_TRACE(testing::Message() << a << ", " << rows);
      std::vector<std::int8_t> q(rows * kColumns, 1);
      std::vector<float> o(rows * kColumns), lse(rows);
      const auto scale = static_cast<float>(a);
      const float one = 1.0F;
      ForwardArguments call;
      call.q = tensor(static_cast<const std::int8_t*>(q.data()), {1, rows, 1, kColumns});
      call.k = tensor(keys.k.data(), {1, kKeys, 1, kColumns});
      call.v = tensor(static_cast<const std::int8_t*>(v.data()), {1, 1, kColumns, columns});
      call.q_descale = call.k_descale = tensor(&scale, {1, 1, 1});
      call.v_descale = tensor(&one, {1, 1, 1});
      call.o = tensor(o.data(), {1, rows, 1, kColumns});
      call.lse = tensor(lse.data(), {1, 1, rows});
      const Status status = forward(call, {.scale = 1.0F});
      ASSERT_TRUE(status.ok()) << status.message();
      keys.expect_mean_of_two(o, a * a + std::log(2.0), lse);
    }
  }
}

}  // namespace
}  // namespace strobe::test
