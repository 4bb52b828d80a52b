// SPDX-License-Identifier: Apache-2.0
// strobe::merge_backward on the CPU against float64, and a backward in parts against the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "merge_case.h"

namespace strobe::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A merge whose gradient is asked for: dO is in `one.o`, dLSE in `one.lse`.
class Gradients {
 public:
  Gradients(MergeCase& one, const MergeShape& shape, DType dtype, const Placement& placement, std::uint64_t seed)
      : one_(one), shape_(shape), dtype_(dtype) {
    Random random(seed);
    const bool packed = shape.batch == 0;
    const std::vector<std::int64_t> o_shape = packed ? std::vector{shape.rows, shape.heads, shape.columns}
                                                     : std::vector{shape.batch, shape.rows, shape.heads, shape.columns};
    const std::vector<std::int64_t> lse_shape =
        packed ? std::vector{shape.heads, shape.rows} : std::vector{shape.batch, shape.heads, shape.rows};
    for (std::size_t i = 0; i < one.parts_o.size(); ++i) {
      d_o.emplace_back(dtype, o_shape, placement, random);
      d_lse.emplace_back(DType::float32, lse_shape, placement, random);
    }
    const std::int64_t rows = std::max<std::int64_t>(shape.batch, 1) * shape.rows * shape.heads;
    for (std::int64_t i = 0; i < rows * shape.columns; ++i) one.o.set(i, random.normal());
    for (std::int64_t i = 0; i < rows; ++i) one.lse.set(i, random.normal());
  }

  Status compute(bool with_lse, int threads = 0) {
    const MergeArguments merged = one_.arguments([](const GuardedTensor& x) { return x.view(); });
    std::vector<PartialGradient> gradients;
    for (std::size_t i = 0; i < d_o.size(); ++i) gradients.push_back({d_o[i].view(), d_lse[i].view()});
    MergeBackwardArguments arguments{merged.parts, merged.o, {}, gradients};
    if (with_lse) arguments.d_lse = merged.lse;
    return merge_backward(arguments, {.threads = threads});
  }

  void expect_gradients(bool with_lse) const {
    const std::int64_t batch = std::max<std::int64_t>(shape_.batch, 1);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t row = 0; row < shape_.rows; ++row) {
        for (std::int64_t head = 0; head < shape_.heads; ++head) expect_row(b, row, head, with_lse);
      }
    }
    for (std::size_t i = 0; i < d_o.size(); ++i) {
      EXPECT_TRUE(d_o[i].guards_intact());
      EXPECT_TRUE(d_lse[i].guards_intact());
    }
  }

  std::vector<GuardedTensor> d_o, d_lse;

 private:
  void expect_row(std::int64_t b, std::int64_t row, std::int64_t head, bool with_lse) const {
    const std::int64_t at = ((b * shape_.rows + row) * shape_.heads + head) * shape_.columns;
    const std::int64_t lse_at = (b * shape_.heads + head) * shape_.rows + row;
    const std::size_t parts = d_o.size();
    double largest = -kInfinity;
    bool defined = true;
    for (const GuardedTensor& x : one_.parts_lse) {
      defined = defined && x.get(lse_at) < kInfinity;
      largest = std::max(largest, x.get(lse_at));
    }
    std::vector<double> weights(parts);
    std::vector<double> products(parts);
    double sum = 0.0;
    double magnitude = 0.0;  // of the products, which roundings are relative to
    for (std::size_t i = 0; i < parts; ++i) {
      const double x = one_.parts_lse[i].get(lse_at);
      if (x == -kInfinity) continue;
      weights[i] = std::exp(x - largest);
      sum += weights[i];
      double of_part = 0.0;
      for (std::int64_t c = 0; c < shape_.columns; ++c) {
        const double term = one_.o.get(at + c) * one_.parts_o[i].get(at + c);
        products[i] += term;
        of_part += std::abs(term);
      }
      magnitude = std::max(magnitude, of_part);
    }
    double mean = 0.0;
    for (std::size_t i = 0; i < parts; ++i) mean += sum > 0.0 ? weights[i] / sum * products[i] : 0.0;
    const double given = with_lse ? one_.lse.get(lse_at) : 0.0;
    const double unit = dtype_ == DType::float32 ? 0x1p-24 : dtype_ == DType::float16 ? 0x1p-11 : 0x1p-8;
    const double small = 0x1p-23 * static_cast<double>(8 + parts + static_cast<std::size_t>(shape_.columns));
    for (std::size_t i = 0; i < parts; ++i) {
      SCOPED_TRACE("part " + std::to_string(i) + ", row " + std::to_string(row) + ", head " + std::to_string(head));
      const double weight = sum > 0.0 ? weights[i] / sum : 0.0;
      for (std::int64_t c = 0; c < shape_.columns; ++c) {
        const double got = d_o[i].get(at + c);
        const double wanted = weight * one_.o.get(at + c);
        if (!defined) {
          EXPECT_TRUE(std::isnan(got));
        } else {
          EXPECT_NEAR(got, wanted, (unit + 0x1p-22) * std::abs(wanted) + 0x1p-24);
        }
      }
      if (!defined) {
        EXPECT_TRUE(std::isnan(d_lse[i].get(lse_at)));
      } else {
        const double wanted = weight * (products[i] - mean + given);
        EXPECT_NEAR(d_lse[i].get(lse_at), wanted, small * weight * (2.0 * magnitude + std::abs(given)) + 0x1p-126);
      }
    }
  }

  MergeCase& one_;
  MergeShape shape_;
  DType dtype_;
};

TEST(MergeBackward, MatchesFloat64) {
  std::uint64_t seed = 1;
  for (const std::size_t parts : {1, 2, 9, 256}) {
    for (const MergeShape& shape :
         {MergeShape{2, 5, 3, 64}, MergeShape{0, 37, 2, 128}, MergeShape{1, 3, 1, 200}, MergeShape{3, 1, 5, 512}}) {
      for (const auto& [source, merged, result] : {std::tuple{DType::float32, DType::float32, DType::float32},
                                                   std::tuple{DType::bfloat16, DType::bfloat16, DType::float32},
                                                   std::tuple{DType::float16, DType::float32, DType::float16},
                                                   std::tuple{DType::float32, DType::float16, DType::bfloat16}}) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        const Placement placement{.layout = seed % 2 == 0 ? Layout::scrambled : Layout::contiguous,
                                  .guard = Guard::bytes};
        MergeCase one(shape, parts, source, merged, placement, seed, seed % 5 == 0);
        Gradients gradients(one, shape, result, placement, seed);
        const Status status = gradients.compute(seed % 3 != 0);
        ASSERT_TRUE(status.ok()) << status.message();
        gradients.expect_gradients(seed % 3 != 0);
        if (testing::Test::HasFailure()) return;
        ++seed;
      }
    }
  }
}

TEST(MergeBackward, GivesTheSameBitsForAnyNumberOfThreads) {
  const MergeShape shape{2, 300, 3, 96};
  MergeCase one(shape, 5, DType::float32, DType::float32, {}, 3);
  Gradients gradients(one, shape, DType::float32, {}, 4);
  ASSERT_TRUE(gradients.compute(true, 1).ok());
  const auto first = gradients.d_lse[2].element_bytes();
  gradients.d_lse[2].poison();
  ASSERT_TRUE(gradients.compute(true, 4).ok());
  EXPECT_TRUE(gradients.d_lse[2].element_bytes() == first);
}

TEST(MergeBackward, TakesTensorsWithoutRows) {
  const MergeShape shape{2, 0, 3, 64};
  MergeCase one(shape, 2, DType::float32, DType::float32, {}, 1);
  EXPECT_TRUE(Gradients(one, shape, DType::float32, {}, 1).compute(true).ok());
}

/// Two parts of one row of 8 columns.
struct GradientCall {
  GradientCall() {
    for (int i = 0; i < 2; ++i) {
      parts.push_back({tensor(floats.data() + 8 * i, {1, 1, 1, 8}), tensor(floats.data() + 100 + i, {1, 1, 1})});
      gradients.push_back(
          {tensor(floats.data() + 40 + 8 * i, {1, 1, 1, 8}), tensor(floats.data() + 110 + i, {1, 1, 1})});
    }
    d_o = tensor(floats.data() + 16, {1, 1, 1, 8});
  }
  std::string failure() const { return std::string(merge_backward({parts, d_o, d_lse, gradients}).message()); }

  std::vector<float> floats = std::vector<float>(128);
  std::vector<PartialResult> parts;
  std::vector<PartialGradient> gradients;
  TensorView d_o, d_lse;
};

TEST(MergeBackward, SaysWhatIsWrong) {
  const auto expect = [](const std::string& message, const auto& make) {
    GradientCall call;
    make(call);
    EXPECT_EQ(call.failure().substr(0, message.size()), message);
  };
  EXPECT_EQ(GradientCall().failure(), "");
  expect("0 parts are given: a merge takes from 1 to 256", [](GradientCall& c) { c.parts.clear(); });
  expect("1 gradients are given for 2 parts: give one for each", [](GradientCall& c) { c.gradients.pop_back(); });
  expect("d_o is missing", [](GradientCall& c) { c.d_o = {}; });
  expect("d_lse has rank 4: it must ha", [](GradientCall& c) { c.d_lse = c.d_o; });
  expect("gradients[1].d_lse is missing", [](GradientCall& c) { c.gradients[1].d_lse = {}; });
  expect("gradients[1].d_o is float16", [](GradientCall& c) { c.gradients[1].d_o.dtype = DType::float16; });
  expect("gradients[0].d_o", [](GradientCall& c) { c.gradients[0].d_o.data = c.floats.data(); });
  expect("gradients[0].d_o", [](GradientCall& c) { c.gradients[0].d_o.data = c.gradients[1].d_o.data; });
}

}  // namespace
}  // namespace strobe::test
