// SPDX-License-Identifier: Apache-2.0
#include "strobe/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "call/eight_bit.h"
#include "io/quantized.h"
#include "random.h"
#include "reference/tensors.h"

namespace strobe::test {
namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

struct Source {
  io::HostTensor q, k, v;
};

io::HostTensor random_tensor(std::vector<std::int64_t> shape, Random& random) {
  io::HostTensor tensor = io::make_tensor(DType::float32, std::move(shape));
  auto* data = reinterpret_cast<float*>(tensor.bytes.data());
  for (std::size_t i = 0; i < io::element_count(tensor); ++i) data[i] = static_cast<float>(random.normal()) + 0.5F;
  return tensor;
}

Source make_source(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim) {
  Random random(7);
  return {random_tensor({2, seqlen_q, 4, head_dim}, random), random_tensor({2, seqlen_k, 2, head_dim}, random),
          random_tensor({2, seqlen_k, 2, head_dim + 8}, random)};
}

float& at(io::HostTensor& tensor, std::int64_t batch, std::int64_t row, std::int64_t head, std::int64_t column) {
  const auto& s = tensor.shape;
  return reinterpret_cast<float*>(tensor.bytes.data())[((batch * s[1] + row) * s[2] + head) * s[3] + column];
}

io::Quantized must_quantize(const Source& source, const QuantizeOptions& options, int threads = 1) {
  Result<io::Quantized> result =
      io::quantized(io::view(source.q), io::view(source.k), io::view(source.v), options, Execution{.threads = threads});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : io::Quantized{};
}

double scale_of(const io::HostTensor& scales, ScaleUnit unit, std::int64_t batch, std::int64_t head, std::int64_t row,
                std::int64_t seqlen) {
  const auto& s = scales.shape;
  const std::int64_t index =
      ((unit == ScaleUnit::tensor ? 0 : batch) * s[1] + (unit == ScaleUnit::tensor ? 0 : head)) * s[2] +
      row / rows_per_scale(unit, seqlen);
  return static_cast<double>(reinterpret_cast<const float*>(scales.bytes.data())[index]);
}

/// Half a step of the element at a value, in units of the scale.
double half_step(DType element, double value) {
  return element == DType::int8 ? 0.5 : std::max(0x1p-10, std::fabs(value) * 0x1p-4);
}

struct Case {
  DType element;
  ScaleUnit unit;
};

class Quantize : public testing::TestWithParam<Case> {};

/// A row of `tensor` as it is rounded: centred, rotated.
std::vector<double> expected_row(io::HostTensor& tensor, std::int64_t batch, std::int64_t row, std::int64_t head,
                                 const std::vector<double>& mean, const QuantizeOptions& options) {
  std::vector<double> result;
  for (std::int64_t c = 0; c < tensor.shape[3]; ++c) {
    const double centre = mean.empty() ? 0.0 : mean[static_cast<std::size_t>(c)];
    result.push_back(static_cast<double>(at(tensor, batch, row, head, c)) - centre);
  }
  rotate(options.seed, result.data(), tensor.shape[3]);
  return result;
}

void expect_rounded(const std::vector<double>& row, const io::HostTensor& elements, std::int64_t first,
                    std::int64_t stride, double scale, DType element) {
  for (std::size_t c = 0; c < row.size(); ++c) {
    const double value = reference::load(io::view(elements), first + static_cast<std::int64_t>(c) * stride);
    const double wanted = row[c] / scale;
    EXPECT_NEAR(value, wanted, half_step(element, wanted) + 1e-4 * (1.0 + std::fabs(wanted))) << c;
  }
}

TEST_P(Quantize, RoundsRotatedRowsToTheirScales) {
  const auto [element, unit] = GetParam();
  Source source = make_source(150, 70, 96);
  const QuantizeOptions options{.element = element, .q_scales = unit, .k_scales = unit, .v_scales = unit, .seed = 11};
  const io::Quantized q = must_quantize(source, options);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < 150; ++i) {
      for (std::int64_t h = 0; h < 4; ++h) {
        expect_rounded(expected_row(source.q, b, i, h, {}, options), q.q8, ((b * 150 + i) * 4 + h) * 96, 1,
                       scale_of(q.q_descale, unit, b, h, i, 150), element);
      }
    }
    for (std::int64_t h = 0; h < 2; ++h) {
      std::vector<double> mean(96, 0.0);
      for (std::int64_t i = 0; i < 70; ++i) {
        for (std::int64_t c = 0; c < 96; ++c) mean[c] += static_cast<double>(at(source.k, b, i, h, c)) / 70.0;
      }
      for (std::int64_t i = 0; i < 70; ++i) {
        expect_rounded(expected_row(source.k, b, i, h, mean, options), q.k8, ((b * 70 + i) * 2 + h) * 96, 1,
                       scale_of(q.k_descale, unit, b, h, i, 70), element);
        expect_rounded(expected_row(source.v, b, i, h, {}, options), q.v8, (b * 2 + h) * 104 * 96 + value_position(i),
                       96, scale_of(q.v_descale, unit, b, h, i, 70), element);
      }
      for (std::int64_t head = 2 * h; head < 2 * h + 2; ++head) {
        for (std::int64_t i = 0; i < 150; ++i) {
          double shift = 0.0;
          for (std::int64_t c = 0; c < 96; ++c) shift += static_cast<double>(at(source.q, b, i, head, c)) * mean[c];
          const auto* written = reinterpret_cast<const float*>(q.q_shift.bytes.data());
          EXPECT_NEAR(static_cast<double>(written[(b * 4 + head) * 150 + i]), shift, 1e-4);
        }
      }
    }
  }
}

TEST_P(Quantize, ThreadsDoNotChangeIt) {
  const auto [element, unit] = GetParam();
  const Source source = make_source(150, 70, 64);
  const QuantizeOptions options{.element = element, .q_scales = unit, .k_scales = unit, .v_scales = unit};
  const io::Quantized one = must_quantize(source, options, 1);
  const io::Quantized four = must_quantize(source, options, 4);
  EXPECT_EQ(one.q8.bytes, four.q8.bytes);
  EXPECT_EQ(one.k8.bytes, four.k8.bytes);
  EXPECT_EQ(one.v8.bytes, four.v8.bytes);
  EXPECT_EQ(one.v_descale.bytes, four.v_descale.bytes);
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const char* const units[] = {"Tensor", "Head", "Block", "Group", "Row"};
  return std::string(info.param.element == DType::int8 ? "Int8" : "E4m3") + units[static_cast<int>(info.param.unit)];
}

INSTANTIATE_TEST_SUITE_P(EveryUnit, Quantize,
                         testing::Values(Case{DType::int8, ScaleUnit::tensor}, Case{DType::int8, ScaleUnit::head},
                                         Case{DType::int8, ScaleUnit::block}, Case{DType::int8, ScaleUnit::group},
                                         Case{DType::int8, ScaleUnit::row}, Case{DType::float8_e4m3, ScaleUnit::tensor},
                                         Case{DType::float8_e4m3, ScaleUnit::head},
                                         Case{DType::float8_e4m3, ScaleUnit::block},
                                         Case{DType::float8_e4m3, ScaleUnit::group},
                                         Case{DType::float8_e4m3, ScaleUnit::row}),
                         case_name);

TEST(QuantizeValues, OrderOfKeysIsAPermutationOfEvery32) {
  for (std::int64_t first = 0; first < 96; first += 32) {
    std::vector<std::int64_t> positions;
    for (std::int64_t key = first; key < first + 32; ++key) positions.push_back(value_position(key));
    std::ranges::sort(positions);
    for (std::int64_t i = 0; i < 32; ++i) EXPECT_EQ(positions[static_cast<std::size_t>(i)], first + i);
  }
  // The four neighbours of an operand's register are two pairs of an accumulator.
  EXPECT_EQ(value_position(0), 0);
  EXPECT_EQ(value_position(1), 1);
  EXPECT_EQ(value_position(8), 2);
  EXPECT_EQ(value_position(9), 3);
  EXPECT_EQ(value_position(2), 4);
  EXPECT_EQ(value_position(16), 16);
}

TEST(QuantizeValues, PaddingIsZero) {
  const io::Quantized q = must_quantize(make_source(4, 33, 32), {});
  ASSERT_EQ(q.v8.shape[3], 64);
  std::vector<bool> used(64, false);
  for (std::int64_t key = 0; key < 33; ++key) used[static_cast<std::size_t>(value_position(key))] = true;
  for (std::size_t i = 0; i < q.v8.bytes.size(); ++i) {
    if (!used[i % 64]) {
      EXPECT_EQ(q.v8.bytes[i], std::byte{0});
    }
  }
}

/// Batch 1, key head 1 everywhere.
TEST(QuantizeNotFinite, QueryRowsGetAScaleThatIsNotANumber) {
  Source source = make_source(40, 40, 32);
  at(source.q, 1, 5, 3, 7) = kNotANumber;
  at(source.q, 0, 6, 0, 0) = std::numeric_limits<float>::infinity();
  const io::Quantized q = must_quantize(source, {});
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t i = 0; i < 40; ++i) {
        const bool bad = (b == 1 && h == 3 && i == 5) || (b == 0 && h == 0 && i == 6);
        EXPECT_EQ(std::isnan(scale_of(q.q_descale, ScaleUnit::row, b, h, i, 40)), bad);
      }
    }
  }
}

TEST(QuantizeNotFinite, KeysTouchTheirValueScaleAlone) {
  Source source = make_source(40, 40, 32);
  at(source.k, 1, 5, 1, 7) = kNotANumber;
  at(source.v, 0, 6, 0, 0) = -std::numeric_limits<float>::infinity();
  const io::Quantized q = must_quantize(source, {});
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < 40; ++i) {
        const bool bad = (b == 1 && h == 1 && i == 5) || (b == 0 && h == 0 && i == 6);
        EXPECT_EQ(std::isnan(scale_of(q.v_descale, ScaleUnit::row, b, h, i, 40)), bad);
        EXPECT_FALSE(std::isnan(scale_of(q.k_descale, ScaleUnit::group, b, h, i, 40)));
      }
    }
  }
}

TEST(QuantizeNotFinite, WithoutRowScalesOfVTheKeysUnitSuffers) {
  Source source = make_source(40, 40, 32);
  at(source.k, 1, 35, 1, 7) = kNotANumber;
  const io::Quantized q = must_quantize(source, {.v_scales = ScaleUnit::head});
  for (std::int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(std::isnan(scale_of(q.k_descale, ScaleUnit::group, 1, 1, i, 40)), i >= 32);
    EXPECT_FALSE(std::isnan(scale_of(q.v_descale, ScaleUnit::head, 1, 1, i, 40)));
  }
}

TEST(Rotation, KeepsProductsAndGoesBack) {
  for (const std::int64_t columns : {1, 2, 64, 80, 96, 128, 192, 256}) {
    Random random(static_cast<std::uint64_t>(columns));
    std::vector<double> x, y;
    for (std::int64_t c = 0; c < columns; ++c) {
      x.push_back(random.normal());
      y.push_back(random.normal());
    }
    const std::vector<double> original = x;
    double before = 0.0;
    double after = 0.0;
    for (std::size_t c = 0; c < x.size(); ++c) before += x[c] * y[c];
    rotate(3, x.data(), columns);
    rotate(3, y.data(), columns);
    for (std::size_t c = 0; c < x.size(); ++c) after += x[c] * y[c];
    EXPECT_NEAR(before, after, 1e-12);
    rotate_back(3, x.data(), columns);
    for (std::size_t c = 0; c < x.size(); ++c) EXPECT_NEAR(x[c], original[c], 1e-13);
  }
}

}  // namespace
}  // namespace strobe::test
