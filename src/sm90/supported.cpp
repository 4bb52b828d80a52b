// SPDX-License-Identifier: Apache-2.0
#include "sm90/supported.h"

#include <algorithm>
#include <initializer_list>

#include "call/eight_bit.h"
#include "gpu/plan/row_invariant.h"
#include "gpu/variant/text_code.h"
#include "sm90/pages.h"
#include "sm90/wide_tiles.h"

namespace strobe::sm90 {
namespace {

/// What the kernel for 8-bit operands lacks.
Status check_eight_bit(const AttentionProblem& problem) {
  constexpr std::int64_t kAlignedElements = 16;  // bytes: TMA's
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value % kAlignedElements != 0) {
      return unsupported("{} is {}: the sm90 kernels take multiples of {} with {} inputs; the cpu engine takes any",
                         name, value, kAlignedElements, name_of(problem.dtype));
    }
  }
  if (problem.eight_bit.k_rows < std::min<std::int64_t>(kGroupRows, problem.seqlen_k)) {
    return unsupported("k_descale has a scale for each row: the sm90 kernels take one for 32 rows or more");
  }
  return {};
}

/// K and V in 8 bits out of pages that TMA does not bring whole.
Status check_stored_pages(const AttentionProblem& problem) {
  if (!reads_stored_page_rows(problem)) return {};
  return unsupported("k is {} in pages of {} rows{}: the sm90 kernels do not read it row by row",
                     name_of(problem.stored.dtype), problem.page_size, problem.has_leftpad_k ? " with leftpad_k" : "");
}

/// The kernels of these gradients hold rows of Q, K, V and dO whole in shared memory.
Status check_wide_terms(const AttentionProblem& problem) {
  if (!has_wide_heads(problem) || (!problem.wants_d_bias && problem.expression.gradients == 0)) return {};
  return unsupported(
      "{} given, head_dim is {} and head_dim_v {}: the sm90 kernels take up to {}; the sm80 kernels more",
      problem.wants_d_bias ? "d_bias is" : "d_captures are", problem.head_dim, problem.head_dim_v,
      gpu::kMostNarrowColumns);
}

/// Gradients on their way to dP are float16, and bfloat16 is too coarse for those of float16 tensors.
Status check_slope(const AttentionProblem& problem) {
  if (problem.pass != Pass::backward || problem.dtype != DType::float16 || !gpu::text_rule(problem).wide_slope) {
    return {};
  }
  return unsupported(
      "modifiers.function has a score whose derivative may pass 16 and q is float16: the sm90 kernels "
      "have its gradients in bfloat16; the sm80 kernels in both");
}

}  // namespace

Status check_supported(const AttentionProblem& problem) {
  if (problem.eight_bit.given()) {
    if (Status status = check_eight_bit(problem); !status.ok()) return status;
  } else if (problem.dtype == DType::float32) {
    return gpu::unsupported("q is float32: the sm90 kernels compute in float16 and bfloat16; the sm80 kernels take it");
  }
  if (Status status = check_stored_pages(problem); !status.ok()) return status;
  if (Status status = check_slope(problem); !status.ok()) return status;
  if (Status status = check_wide_terms(problem); !status.ok()) return status;
  if (Status status = gpu::check_query_values(problem); !status.ok()) return status;
  if (Status status = gpu::check_row_invariant(problem); !status.ok()) return status;
  if (Status status = gpu::check_sizes(problem, gpu::most_columns(problem)); !status.ok()) return status;
  return gpu::check_wide(problem, "sm90");
}

}  // namespace strobe::sm90
