// SPDX-License-Identifier: Apache-2.0
// Scores of any finite size on a GPU engine, in kernels of each design and of many rules. Right results are known, as
// products are small integers times powers of two.
#include <algorithm>
#include <functional>
#include <string>
#include <tuple>

#include "attention/large_scores.h"
#include "attention/random.h"
#include "device_copies.h"
#include "gpu_test.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

/// What a call asks for beyond plain attention, which changes no probability.
struct Rule {
  const char* name;
  std::function<void(AttentionCase&)> set;
};

const Rule kRules[] = {
    {"Plain", [](AttentionCase&) {}},
    {"Deterministic", [](AttentionCase& attention) { attention.options.deterministic = true; }},
    {"Window", [](AttentionCase& attention) { attention.options.window = {.left = 5000, .right = 5000}; }},
    {"UsedLengths",
     [](AttentionCase& attention) { attention.q.seqused = {static_cast<std::int32_t>(attention.q.rows)}; }},
    {"Bias", [](AttentionCase& attention) { attention.bias = BiasCase{}; }},
    {"Alibi", [](AttentionCase& attention) { attention.alibi = Alibi::per_head; }},
    {"AlibiAndBias",
     [](AttentionCase& attention) {
       attention.bias = BiasCase{};
       attention.alibi = Alibi::per_head;
     }},
    {"Sink", [](AttentionCase& attention) { attention.has_sink = true; }},
    {"RowInvariant", [](AttentionCase& attention) { attention.options.row_invariant = true; }},
};

constexpr int kHeadDims[] = {64, 128, 256, 512};

class LargeScoresTest : public GpuTest {
 protected:
  // Of queries: few, which may share out the keys, and more than tiles take.
  static constexpr std::int64_t kRowCounts[] = {1, 40, 300};

  void run(LargeScoresCall& call) {
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);  // as sanitizers need them
    DeviceCopies copies(device());
    const auto place = [&](const GuardedTensor& tensor) { return copies.place(tensor); };
    const AttentionOptions& options = call.attention().options;
    run(call.tensors.forward_arguments(place), options);
    if (!options.row_invariant) run(call.tensors.backward_arguments(place), options);
    copies.download(call.tensors.forward_outputs());
    if (!options.row_invariant) copies.download(call.tensors.backward_outputs());
  }

  static AttentionCase queries(DType dtype, std::int64_t rows) {
    AttentionCase attention{.dtype = dtype};
    attention.q.rows = rows;
    attention.placement.alignment = 8;
    return attention;
  }

  /// For each dtype, size of scores, head_dim and number of queries.
  void for_each(const Rule& rule, const std::function<void(const AttentionCase&, double, std::int64_t)>& visit) {
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const std::int64_t head_dim : kHeadDims) {
        for (const std::int64_t rows : kRowCounts) {
          AttentionCase attention = queries(dtype, rows);
          rule.set(attention);
          for (const int exponent : sizes(dtype, head_dim)) {
            SCOPED_TRACE(testing::Message()
                         << name_of(dtype) << " head_dim " << head_dim << " rows " << rows << ", 1e" << exponent);
            visit(attention, magnitude(exponent), head_dim);
            if (HasFailure()) return;
          }
        }
      }
    }
  }

  void expect_winners(LargeScoresCall& call, std::int64_t head_dim, double scale);

 private:
  /// Powers of two whose square is near 10^exponent, within the dtype.
  static double magnitude(int exponent) { return std::exp2(std::round(exponent * std::log2(10.0) / 2)); }
  static std::vector<int> sizes(DType dtype, std::int64_t head_dim) {
    if (head_dim > 256) return {3, dtype == DType::float16 ? 9 : 30};  // whose results take the CPU long to compare
    return dtype == DType::float16 ? std::vector{3, 5, 9} : std::vector{3, 5, 9, 12, 30};
  }

  template <class Arguments>
  static void run(const Arguments& arguments, const AttentionOptions& options) {
    const Result<Plan> plan = make_plan(arguments, options, tested_execution());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Status status = plan->run(arguments, {});
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

/// Of random Q and K: each row's O is the V of its largest score, whose dV gets all of the row's dO.
void LargeScoresTest::expect_winners(LargeScoresCall& call, std::int64_t head_dim, double scale) {
  CaseTensors& t = call.tensors;
  const std::int64_t rows = t.q.size() / head_dim;
  const std::int64_t keys = t.k.size() / head_dim;
  Random random(7);
  for (std::int64_t i = 0; i < t.q.size(); ++i) t.q.set(i, random.normal());
  for (std::int64_t i = 0; i < t.k.size(); ++i) t.k.set(i, random.normal());
  std::vector<double> d_v(t.v.size(), 0.0);
  std::vector<std::int64_t> winners(rows, -1);
  for (std::int64_t row = 0; row < rows; ++row) {
    double best = -kInfinity;
    double next = -kInfinity;
    double magnitudes = 0.0;
    for (std::int64_t key = 0; key < keys; ++key) {
      double score = 0.0;
      double magnitude = 0.0;
      for (std::int64_t c = 0; c < head_dim; ++c) {
        const double product = t.q.get(row * head_dim + c) * t.k.get(key * head_dim + c);
        score += product;
        magnitude += std::fabs(product);
      }
      magnitudes = std::max(magnitudes, magnitude);
      next = std::max(next, std::min(score, best));
      if (score > best) winners[row] = key;
      best = std::max(best, score);
    }
    const bool clear = (best - next) * scale > 40.0 && best - next > 0x1p-18 * magnitudes;
    if (!clear) winners[row] = -1;
    for (std::int64_t c = 0; c < head_dim; ++c) {
      if (!clear) t.d_o.set(row * head_dim + c, 0.0);
      if (clear) d_v[winners[row] * head_dim + c] += t.d_o.get(row * head_dim + c);
    }
  }
  EXPECT_GT(std::ranges::count_if(winners, [](std::int64_t key) { return key >= 0; }), rows / 2);
  run(call);
  for (std::int64_t i = 0; i < t.o.size(); ++i) {
    const std::int64_t winner = winners[i / head_dim];
    if (winner < 0) continue;
    EXPECT_NEAR(t.o.get(i), t.v.get(winner * head_dim + i % head_dim), 0x1p-7) << "o " << i;  // of |v| up to 1
  }
  for (std::int64_t i = 0; i < t.dv.size(); ++i) {
    EXPECT_NEAR(t.dv.get(i), d_v[i], std::fabs(d_v[i]) * 0x1p-8 + 0x1p-10) << "dv " << i;
  }
}

void without_terms(LargeScoresCall& call) {
  for (std::int64_t i = 0; i < call.tensors.alibi_slopes.size(); ++i) call.tensors.alibi_slopes.set(i, 0.0);
  for (std::int64_t i = 0; i < call.tensors.sink.size(); ++i) call.tensors.sink.set(i, 0.0);
}

/// What each family must do with each of the parameters.
template <class... Parameters>
class OfEachFamily : public LargeScoresTest, public testing::WithParamInterface<std::tuple<Family, Parameters...>> {
 protected:
  using Info = testing::TestParamInfo<std::tuple<Family, Parameters...>>;

  void SetUp() override {
    tested_family() = std::get<Family>(this->GetParam());
    GpuTest::SetUp();
  }
  void TearDown() override { tested_family() = Family::sm90; }
};

class GpuLargeScoresOf : public OfEachFamily<Rule> {
 public:
  static std::string name_of_instance(const Info& info) {
    const auto& [family, rule] = info.param;
    return std::string(name_of(family)) + "_" + rule.name;
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuLargeScoresOf, testing::Combine(kFamilies, testing::ValuesIn(kRules)),
                         GpuLargeScoresOf::name_of_instance);

TEST_P(GpuLargeScoresOf, OneKeyHasAllTheWeight) {
  for_each(std::get<Rule>(GetParam()), [&](const AttentionCase& attention, double a, std::int64_t head_dim) {
    for (const std::size_t count : {1, 200, 700}) {
      std::vector<double> keys(count, -a);
      std::vector<double> p(count, 0.0);
      keys[count / 2] = a;
      p[count / 2] = 1.0;
      LargeScoresCall call(attention, a, keys, head_dim);
      without_terms(call);
      run(call);
      call.expect_probabilities(p, a * a);
    }
  });
}

TEST_P(GpuLargeScoresOf, EqualKeysShareTheWeight) {
  for_each(std::get<Rule>(GetParam()), [&](AttentionCase attention, double a, std::int64_t head_dim) {
    for (const double sign : {1.0, -1.0}) {
      std::vector<double> keys(700, -sign * a);
      std::vector<double> p(700, 0.0);
      for (std::size_t i = 3; i < 700; i += 100) {
        keys[i] = sign * a;
        p[i] = 1.0 / 7.0;
      }
      attention.options.scale = static_cast<float>(sign);
      LargeScoresCall call(attention, a, keys, head_dim);
      without_terms(call);
      run(call);
      call.expect_probabilities(p, a * a + std::log(7.0));
    }
  });
}

class GpuLargeScores : public OfEachFamily<> {
 public:
  static std::string name_of_instance(const Info& info) { return name_of(std::get<Family>(info.param)); }
};

INSTANTIATE_TEST_SUITE_P(, GpuLargeScores, testing::Combine(kFamilies), GpuLargeScores::name_of_instance);

TEST_P(GpuLargeScores, ASinkOfTheSameSizeIsOneMoreKey) {
  for (const Alibi alibi : {Alibi::none, Alibi::per_head}) {  // of which a family may scale the scores first
    const Rule sink{"Sink", [](AttentionCase& attention) { attention.has_sink = true; }};
    for_each(sink, [&](AttentionCase attention, double a, std::int64_t head_dim) {
      attention.alibi = alibi;
      LargeScoresCall call(attention, a, {a, -a, a}, head_dim);
      without_terms(call);
      call.tensors.sink.set(0, a * a);
      run(call);
      call.expect_probabilities({1.0 / 3, 0.0, 1.0 / 3}, a * a + std::log(3.0));
      double d_sink = 0.0;
      for (std::int64_t i = 0; i < call.tensors.o.size(); ++i) {
        d_sink -= call.tensors.o.get(i) * call.tensors.d_o.get(i) / 3;
      }
      EXPECT_NEAR(call.tensors.d_sink.get(0), d_sink, 1e-3 * static_cast<double>(attention.q.rows * head_dim));
    });
  }
}

/// One dtype and one head_dim, whose kernels a test compiles where the library's pack lacks them.
class GpuLargeScoresWith : public OfEachFamily<DType, int> {
 public:
  static std::string name_of_instance(const Info& info) {
    const auto& [family, dtype, head_dim] = info.param;
    return std::string(name_of(family)) + "_" + std::string(name_of(dtype)) + "_d" + std::to_string(head_dim);
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuLargeScoresWith,
                         testing::Combine(kFamilies, testing::Values(DType::bfloat16, DType::float16),
                                          testing::ValuesIn(kHeadDims)),
                         GpuLargeScoresWith::name_of_instance);

TEST_P(GpuLargeScoresWith, RowsMaskedByAFiniteBiasTakeTheMean) {
  const auto [family, dtype, head_dim] = GetParam();
  for (const double value : {-1e4, -1e5, -1e9, -1e20, -1e30, -2.3e38, -kLargestFloat}) {
    for (const std::int64_t rows : kRowCounts) {
      for (const Alibi alibi : {Alibi::none, Alibi::per_head}) {
        SCOPED_TRACE(testing::Message() << value << ", rows " << rows);
        AttentionCase attention = queries(dtype, rows);
        attention.bias = BiasCase{};
        attention.alibi = alibi;
        LargeScoresCall call(attention, 1.0, std::vector<double>(77, 2.0), head_dim);
        for (std::int64_t i = 0; i < call.tensors.bias.size(); ++i) call.tensors.bias.set(i, value);
        without_terms(call);
        run(call);
        const double score = value > -1e8 ? value + 2.0 : value;
        call.expect_probabilities(std::vector<double>(77, 1.0 / 77), score + std::log(77.0));
        if (HasFailure()) return;
      }
    }
  }
}

// Sums of products that float32 rounds: both passes must round them in the same way, as their errors are larger than
// the differences that decide. Rows whose two largest scores are closer than such errors have no gradient.
TEST_P(GpuLargeScoresWith, RandomScoresHaveTheSameRoundingsInBothPasses) {
  constexpr std::int64_t kRows = 200;
  constexpr std::int64_t kKeys = 300;
  const auto [family, dtype, head_dim] = GetParam();
  for (const bool biased : {false, true}) {
    for (const double scale : {1e3, 1e5, 1e7, 1e12, 1e25}) {
      SCOPED_TRACE(testing::Message() << "scale " << scale << (biased ? ", bias" : ""));
      AttentionCase attention = queries(dtype, kRows);
      attention.options.scale = static_cast<float>(scale);
      if (biased) attention.bias = BiasCase{};
      LargeScoresCall call(attention, 1.0, std::vector<double>(kKeys, 1.0), head_dim);
      expect_winners(call, head_dim, scale);
      if (HasFailure()) return;
    }
  }
}

TEST_P(GpuLargeScores, TheLargestBiasPicksItsKey) {
  for (const std::int64_t head_dim : kHeadDims) {
    for (const std::int64_t rows : kRowCounts) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", " << rows);
      AttentionCase attention = queries(DType::bfloat16, rows);
      attention.bias = BiasCase{};
      LargeScoresCall call(attention, 1.0, std::vector<double>(50, 2.0), head_dim);
      for (std::int64_t i = 0; i < call.tensors.bias.size(); ++i) {
        call.tensors.bias.set(i, i % 50 == 30 ? kLargestFloat : -kLargestFloat);
      }
      run(call);
      std::vector<double> p(50, 0.0);
      p[30] = 1.0;
      call.expect_probabilities(p, kLargestFloat);
    }
  }
}

TEST_P(GpuLargeScores, ALargeScaleOrSoftcap) {
  for (const std::int64_t head_dim : kHeadDims) {
    for (const std::int64_t rows : kRowCounts) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", " << rows);
      AttentionCase attention = queries(DType::bfloat16, rows);
      attention.options.scale = 1e10F;
      LargeScoresCall hard(attention, 1.0, {2.0, 1.0, 2.0, -4.0}, head_dim);
      run(hard);
      hard.expect_probabilities({0.5, 0.0, 0.5, 0.0}, 2.0 * 1e10F);
      attention.options.scale = 1.0F;
      attention.options.softcap = 3e38F;
      LargeScoresCall capped(attention, 1.0, {2.0, 1.0}, head_dim);
      run(capped);
      const double p = 1.0 / (1.0 + std::exp(-1.0));
      capped.expect_probabilities({p, 1.0 - p}, 2.0 - std::log(p));
    }
  }
}

}  // namespace
}  // namespace strobe::test
