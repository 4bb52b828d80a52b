// SPDX-License-Identifier: Apache-2.0
#include "sparse_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/attention_case.h"

namespace strobe::test {
namespace {

double unit_roundoff(DType dtype) {
  return dtype == DType::float32 ? 0x1p-24 : dtype == DType::float16 ? 0x1p-11 : 0x1p-8;
}

}  // namespace

SparseParts::SparseParts(const SparseCase& one, const std::array<SparseSource, kMaxSparseSources>& sources,
                         const reference::ArithmeticModel& model)
    : one_(one) {
  for (std::size_t i = 0; i < one.shape.sources.size(); ++i) {
    SparseForwardArguments alone = one.arguments();
    alone.sink = {};
    alone.sources = {};
    alone.sources[0] = sources[i];
    results_.push_back(reference::sparse_forward(alone, one.shape.options, model));
  }
}

void SparseParts::expect(const GuardedTensor& o, const GuardedTensor& lse) const {
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

SparseParts::Row SparseParts::row_of(std::int64_t flat, std::int64_t head) const {
  std::vector<double> of_parts;
  Row row{.weights = {}, .lse = -kInfinity};
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

void SparseParts::expect_lse(const GuardedTensor& lse, std::int64_t flat, const Row& row) const {
  if (!one_.shape.lse) return;
  if (row.lse == -kInfinity) {
    EXPECT_EQ(lse.get(flat), row.lse) << "lse " << flat;
  } else {
    EXPECT_LE(std::fabs(lse.get(flat) - row.lse), row.lse_error + 0x1p-18 * (1.0 + std::fabs(row.lse)))
        << "lse " << flat;
  }
}

/// A part's error counts by its weight, and weights are off by what LSEs are.
void SparseParts::expect_element(const GuardedTensor& o, std::int64_t index, const Row& row) const {
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

}  // namespace strobe::test
