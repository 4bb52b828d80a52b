// SPDX-License-Identifier: Apache-2.0
// strobe::sparse_forward on a GPU against float64: each source's part within its bound, and what merging adds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "attention/seeds.h"
#include "device_copies.h"
#include "gpu_test.h"
#include "reference/bound/arithmetic.h"
#include "reference/sparse.h"
#include "sparse/sparse_case.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double unit_roundoff(DType dtype) {
  return dtype == DType::float32 ? 0x1p-24 : dtype == DType::float16 ? 0x1p-11 : 0x1p-8;
}

/// The parts of a call: what each source alone gives, and the sink, whose O is zero.
class Parts {
 public:
  explicit Parts(const SparseCase& one, const reference::ArithmeticModel& model) : one_(one) {
    const std::size_t sources = one.shape.sources.size();
    for (std::size_t i = 0; i < sources; ++i) {
      SparseForwardArguments alone = one.arguments();
      alone.sink = {};
      alone.sources = {};
      alone.sources[0] = one.arguments().sources[i];
      results_.push_back(reference::sparse_forward(alone, one.shape.options, model));
    }
  }

  /// Rows are those of LSE, [batch, heads, rows] or [heads, rows], in order.
  void expect(const GuardedTensor& o, const GuardedTensor& lse) const {
    const std::int64_t rows = lse.size();
    const std::int64_t columns = one_.shape.head_dim_v;
    const std::int64_t heads = one_.shape.heads_kv * one_.shape.group;
    const std::int64_t queries = one_.shape.packed ? rows / heads : one_.shape.max_queries;
    for (std::int64_t flat = 0; flat < rows; ++flat) {
      const std::int64_t head = flat / queries % heads;
      const std::int64_t query = flat / queries / heads * queries + flat % queries;
      const Row row = row_of(flat, head);
      expect_lse(lse, flat, row);
      for (std::int64_t c = 0; c < columns; ++c) expect_element(o, (query * heads + head) * columns + c, row);
      if (testing::Test::HasFailure()) return;
    }
  }

 private:
  struct Row {
    std::vector<double> weights;  // of the sources
    double lse = -kInfinity;
    double lse_error = 0.0;
  };

  Row row_of(std::int64_t flat, std::int64_t head) const {
    std::vector<double> of_parts;
    Row row;
    for (const reference::SparseForwardResult& result : results_) {
      of_parts.push_back(result.lse.value[static_cast<std::size_t>(flat)]);
      if (of_parts.back() > -kInfinity) {
        row.lse_error = std::max(row.lse_error, result.lse.bound[static_cast<std::size_t>(flat)]);
      }
    }
    if (one_.shape.sink) of_parts.push_back(one_.sink.get(head));
    const double largest = *std::max_element(of_parts.begin(), of_parts.end());
    double sum = 0.0;
    for (const double lse : of_parts) sum += lse > -kInfinity ? std::exp(lse - largest) : 0.0;
    if (sum > 0.0) row.lse = largest + std::log(sum);
    for (const double lse : of_parts) row.weights.push_back(lse > -kInfinity ? std::exp(lse - row.lse) : 0.0);
    return row;
  }

  void expect_lse(const GuardedTensor& lse, std::int64_t flat, const Row& row) const {
    if (!one_.shape.lse) return;
    if (row.lse == -kInfinity) {
      EXPECT_EQ(lse.get(flat), row.lse) << "lse " << flat;
    } else {
      EXPECT_LE(std::fabs(lse.get(flat) - row.lse), row.lse_error + 0x1p-18 * (1.0 + std::fabs(row.lse)))
          << "lse " << flat;
    }
  }

  /// A part's error counts by its weight, and weights are off by what LSEs are.
  void expect_element(const GuardedTensor& o, std::int64_t index, const Row& row) const {
    double value = 0.0;
    double error = 0.0;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (row.weights[i] == 0.0) continue;
      const double part = results_[i].o.value[static_cast<std::size_t>(index)];
      const double bound = results_[i].o.bound[static_cast<std::size_t>(index)];
      value += row.weights[i] * part;
      const double of_weight = std::expm1(2.0 * row.lse_error) + 0x1p-19;
      error += row.weights[i] * (bound * (1.0 + of_weight) + std::fabs(part) * of_weight);
    }
    error += unit_roundoff(one_.shape.dtype) * (std::fabs(value) + error) + 0x1p-24;
    EXPECT_LE(std::fabs(o.get(index) - value), error) << "o " << index << ": " << o.get(index) << " for " << value;
  }

  const SparseCase& one_;
  std::vector<reference::SparseForwardResult> results_;
};

class GpuSparse : public FamilyTest {
 protected:
  void run(SparseCase& one, std::uint64_t seed) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(one.shape));
    DeviceCopies copies(device());
    const SparseForwardArguments arguments =
        one.placed([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    const auto enqueue = [&] {
      const Status status = sparse_forward(arguments, one.shape.options, tested_execution(stream().get()));
      ASSERT_TRUE(status.ok()) << status.message();
      copies.download({&one.o, &one.lse});
    };
    enqueue();
    if (HasFatalFailure()) return;
    Parts(one, reference::arithmetic_of(tested_kernels(), one.shape.dtype)).expect(one.o, one.lse);
    EXPECT_TRUE(one.o.guards_intact());
    EXPECT_TRUE(one.lse.guards_intact());
    const std::vector<std::byte> first = one.o.element_bytes();
    enqueue();
    EXPECT_EQ(one.o.element_bytes(), first) << "another run gave other bits";
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuSparse, kFamilies, family_name);

TEST_P(GpuSparse, RandomCallsMatchReference) {
  for (const std::uint64_t seed : chosen_seeds(60)) {
    SparseShape shape = random_gpu_shape(seed);
    SparseCase one(shape, seed);
    run(one, seed);
    if (HasFailure()) return;
  }
}

/// Rows of latent attention and their like, which are key and value in one or apart.
TEST_P(GpuSparse, RandomCallsOfWideHeadsMatchReference) {
  if (tested_family() == Family::sm80) GTEST_SKIP() << "the sm80 kernels have no heads of more than 256 columns";
  for (const std::uint64_t seed : chosen_seeds(40)) {
    SparseShape shape = random_gpu_shape(seed, true);
    SparseCase one(shape, seed);
    run(one, seed);
    if (HasFailure()) return;
  }
}

/// Plans are kept: of calls whose keys alone lie otherwise, too.
TEST_P(GpuSparse, KeysMayLieOtherwiseInTheNextCall) {
  for (const KeyLayout layout : {KeyLayout::batched, KeyLayout::pages, KeyLayout::pool, KeyLayout::batched}) {
    SparseShape shape;
    shape.dtype = DType::float16;
    shape.head_dim = shape.head_dim_v = 64;
    shape.contiguous = true;
    shape.sources[0].dtype = shape.dtype;
    shape.sources[0].layout = layout;
    SparseCase one(shape, 11);
    run(one, 11);
    if (HasFailure()) return;
  }
}

/// Numbers out of range name nothing: those of a list, of a page table and of a length.
TEST_P(GpuSparse, NumbersOutOfRangeNameNothing) {
  SparseShape shape;
  shape.dtype = DType::bfloat16;
  shape.head_dim = shape.head_dim_v = 64;
  shape.contiguous = true;
  shape.sources[0].dtype = shape.dtype;
  shape.sources[0].layout = KeyLayout::pages;
  shape.sources[0].lengths = true;
  SparseCase one(shape, 7);
  SparseCase wrong(shape, 7);
  GuardedTensor& names = wrong.tensors[0]->indices;
  for (std::int64_t i = 0; i < names.size(); ++i) {
    if (names.get(i) == -1) names.set(i, i % 2 == 0 ? -2'000'000'000 : 2'000'000'000);
  }
  run(one, 7);
  DeviceCopies copies(device());
  const SparseForwardArguments arguments =
      wrong.placed([&](const GuardedTensor& tensor) { return copies.place(tensor); });
  const Status status = sparse_forward(arguments, shape.options, tested_execution(stream().get()));
  ASSERT_TRUE(status.ok()) << status.message();
  copies.download({&wrong.o, &wrong.lse});
  EXPECT_EQ(wrong.o.element_bytes(), one.o.element_bytes());
}

}  // namespace
}  // namespace strobe::test
