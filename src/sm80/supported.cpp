// SPDX-License-Identifier: Apache-2.0
#include "sm80/supported.h"

#include <algorithm>
#include <iterator>

#include "call/arithmetic.h"
#include "gpu/params/score.h"
#include "gpu/plan/converted_cache.h"
#include "gpu/plan/row_invariant.h"
#include "gpu/plan/supported.h"

namespace strobe::sm80 {
namespace {

/// Copies are of 16 bytes.
Status check_stored(const AttentionProblem& problem) {
  if (!problem.stored.given()) return {};
  if (problem.dtype == DType::float32) {
    return gpu::unsupported("k is {} and q is float32: the gpu engine takes it beside float16 and bfloat16",
                            name_of(problem.stored.dtype));
  }
  constexpr std::int64_t kElements = 16;
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value % kElements != 0) {
      return gpu::unsupported("{} is {} and k is {}: the sm80 kernels take multiples of {}; the cpu engine takes any",
                              name, value, name_of(problem.stored.dtype), kElements);
    }
  }
  if (problem.row_invariant && gpu::is_too_large_to_convert(problem)) {
    return gpu::unsupported(
        "row_invariant with k in {} converts it to 16 bits first on the gpu engine: {} sequences of {} keys would take "
        "more than 8 GiB; the cpu engine converts nothing",
        name_of(problem.stored.dtype), problem.batch, problem.seqlen_k);
  }
  return {};
}

/// float32 takes twice the registers that hold operands.
Status check_floats(const AttentionProblem& problem) {
  constexpr std::int64_t kWidest = 128;
  if (problem.dtype != DType::float32) return {};
  if (problem.head_dim_v > kWidest) {
    return gpu::unsupported("head_dim_v is {} and q is float32: the sm80 kernels take up to {}", problem.head_dim_v,
                            kWidest);
  }
  const bool has_more = problem.modifiers.has_bias || gpu::score_rule(problem).mask_left;
  if (problem.dropout != 0.0F && problem.head_dim_v > kWidest / 2 && has_more) {
    return gpu::unsupported(
        "dropout with a bias, window or chunk, head_dim_v {} and q in float32: the sm80 kernels take up to {} then",
        problem.head_dim_v, kWidest / 2);
  }
  if (problem.pass == Pass::backward && problem.head_dim > kWidest) {
    return gpu::unsupported("head_dim is {} and q is float32: the sm80 kernels have gradients up to {}",
                            problem.head_dim, kWidest);
  }
  return {};
}

}  // namespace

Status check_supported(const AttentionProblem& problem) {
  if (problem.eight_bit.given()) {
    return gpu::unsupported("q is {}: the sm80 kernels have no 8-bit inputs; the sm90 kernels and the cpu engine have",
                            name_of(problem.dtype));
  }
  if (Status status = check_stored(problem); !status.ok()) return status;
  if (Status status = gpu::check_query_values(problem); !status.ok()) return status;
  if (Status status = gpu::check_row_invariant(problem); !status.ok()) return status;
  if (Status status = gpu::check_sizes(problem, gpu::most_columns(problem)); !status.ok()) return status;
  if (Status status = gpu::check_wide(problem, "sm80"); !status.ok()) return status;
  return check_floats(problem);
}

int compiled_wide_head_dim(std::int64_t head_dim) {
  return std::max(round_up(static_cast<int>(head_dim), kWideColumns), kWideColumns);
}

int compiled_head_dim(std::int64_t head_dim) {
  constexpr int kCompiled[] = {32, 64, 96, 128, 192, 256};
  return *std::lower_bound(std::begin(kCompiled), std::end(kCompiled), static_cast<int>(head_dim));
}

}  // namespace strobe::sm80
