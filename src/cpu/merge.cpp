// SPDX-License-Identifier: Apache-2.0
// Weights in float64, sums of columns in float32, a task for some rows of a head.
#include "cpu/merge.h"

#include <array>
#include <cmath>
#include <limits>

#include "call/limits.h"
#include "cpu/merged_rows.h"

namespace strobe::cpu {
namespace {

template <class From, class To>
void merge_row(const MergeArguments& a, std::int64_t columns, const Place& at, const Weights& weights) {
  std::array<float, kMaxHeadDimV> sums{};
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    const PartialResult& part = a.parts[i];
    if (static_cast<const float*>(part.lse.data)[index_in_lse(part.lse, at)] ==
        -std::numeric_limits<float>::infinity()) {
      continue;  // whatever it holds
    }
    const From* from = static_cast<const From*>(part.o.data) + index_in_o(part.o, at);
    const float weight = weights.of_part[i];
    for (std::int64_t c = 0; c < columns; ++c) sums[static_cast<std::size_t>(c)] += weight * to_float(from[c]);
  }
  To* to = static_cast<To*>(a.o.data) + index_in_o(a.o, at);
  if (std::isnan(weights.lse)) sums.fill(weights.lse);
  for (std::int64_t c = 0; c < columns; ++c) to[c] = from_float<To>(sums[static_cast<std::size_t>(c)]);
}

template <class From, class To>
void merge_as(const MergeArguments& a, const Execution& execution) {
  const std::int64_t columns = Extents(a.o).columns;
  for_each_row(a.o, execution, [&](const Place& at, Weights& weights) {
    weigh(a.parts, at, weights);
    merge_row<From, To>(a, columns, at, weights);
    if (a.lse.given()) static_cast<float*>(a.lse.data)[index_in_lse(a.lse, at)] = weights.lse;
  });
}

template <class From>
void merge_from(const MergeArguments& a, const Execution& execution) {
  switch (a.o.dtype) {
    case DType::float16: return merge_as<From, float16>(a, execution);
    case DType::bfloat16: return merge_as<From, bfloat16>(a, execution);
    default: return merge_as<From, float>(a, execution);
  }
}

}  // namespace

void merge(const MergeArguments& a, const Execution& execution) {
  switch (a.parts.front().o.dtype) {
    case DType::float16: return merge_from<float16>(a, execution);
    case DType::bfloat16: return merge_from<bfloat16>(a, execution);
    default: return merge_from<float>(a, execution);
  }
}

}  // namespace strobe::cpu
