// SPDX-License-Identifier: Apache-2.0
#include "gpu/params/cache.h"

#include <algorithm>
#include <cstdint>

#include "gpu/plan/supported.h"

namespace strobe::gpu {

CacheParams cache_params(const AttentionProblem& problem, const ForwardArguments& arguments, int box_rows) {
  CacheParams params{};
  const auto in_32_bits = [](std::int64_t count) { return static_cast<int>(std::min(count, kMaxInt)); };
  params.entries = static_cast<const int*>(arguments.sequences.cache_batch_idx.data);
  params.count = problem.packed_k ? 0 : in_32_bits(arguments.k.shape[0]);
  if (problem.page_size == 0) return params;
  params.page_table = static_cast<const int*>(arguments.page_table.data);
  params.table_batch_stride = arguments.page_table.strides[0];
  params.table_page_stride = arguments.page_table.strides[1];
  params.box_rows = box_rows;
  params.by_page_size = Divisor::of(in_32_bits(problem.page_size));
  return params;
}

}  // namespace strobe::gpu
