// SPDX-License-Identifier: Apache-2.0
// What the parts of a sparse call are in float64, and what merging them adds.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "reference/bound/arithmetic.h"
#include "reference/sparse.h"
#include "sparse/sparse_case.h"

namespace strobe::test {

/// The parts of a call: what each source alone gives, and the sink, whose O is zero.
class SparseParts {
 public:
  SparseParts(const SparseCase& one, const reference::ArithmeticModel& model)
      : SparseParts(one, one.arguments().sources, model) {}

  /// Of other sources than those of the case.
  SparseParts(const SparseCase& one, const std::array<SparseSource, kMaxSparseSources>& sources,
              const reference::ArithmeticModel& model);

  /// Rows are those of LSE, [batch, heads, rows] or [heads, rows], in order.
  void expect(const GuardedTensor& o, const GuardedTensor& lse) const;

 private:
  struct Row {
    std::vector<double> weights;  // of the sources
    double lse;
    double lse_error = 0.0;
  };

  Row row_of(std::int64_t flat, std::int64_t head) const;
  void expect_lse(const GuardedTensor& lse, std::int64_t flat, const Row& row) const;
  void expect_element(const GuardedTensor& o, std::int64_t index, const Row& row) const;

  const SparseCase& one_;
  std::vector<reference::SparseForwardResult> results_;
};

}  // namespace strobe::test
