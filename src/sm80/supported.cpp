// SPDX-License-Identifier: Apache-2.0
#include "sm80/supported.h"

#include <algorithm>
#include <iterator>

#include "gpu/plan/row_invariant.h"
#include "gpu/plan/supported.h"

namespace strobe::sm80 {
namespace {

/// Copies are of 16 bytes.
Status check_stored(const AttentionProblem& problem) {
  if (!problem.stored.given()) return {};
  constexpr std::int64_t kElements = 16;
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value % kElements != 0) {
      return gpu::unsupported("{} is {} and k is {}: the sm80 kernels take multiples of {}; the cpu engine takes any",
                              name, value, name_of(problem.stored.dtype), kElements);
    }
  }
  return {};
}

}  // namespace

Status check_supported(const AttentionProblem& problem) {
  if (problem.eight_bit.given()) {
    return gpu::unsupported("q is {}: the sm80 kernels have no 8-bit inputs; the sm90 kernels and the cpu engine have",
                            name_of(problem.dtype));
  }
  if (Status status = gpu::check_dtype(problem); !status.ok()) return status;
  if (Status status = check_stored(problem); !status.ok()) return status;
  if (Status status = gpu::check_row_invariant(problem); !status.ok()) return status;
  return gpu::check_sizes(problem);
}

int compiled_head_dim(std::int64_t head_dim) {
  constexpr int kCompiled[] = {32, 64, 96, 128, 192, 256};
  return *std::lower_bound(std::begin(kCompiled), std::end(kCompiled), static_cast<int>(head_dim));
}

}  // namespace strobe::sm80
