// SPDX-License-Identifier: Apache-2.0
#include "hopper/supported.h"

#include <initializer_list>
#include <string_view>

namespace strobe::hopper {

Status check_supported(const AttentionProblem& problem) {
  if (problem.dtype != DType::bfloat16 && problem.dtype != DType::float16) {
    return unsupported("q is {}: the hopper engine computes in float16 and bfloat16", strobe::name_of(problem.dtype));
  }
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value % 8 != 0 || value > 256) {
      return unsupported("{} is {}: the hopper engine takes multiples of 8 up to 256", name, value);
    }
  }
  for (const auto& [name, value] : {std::pair{"seqlen_q", problem.seqlen_q}, std::pair{"seqlen_k", problem.seqlen_k},
                                    std::pair{"total_q", problem.total_q}, std::pair{"total_k", problem.total_k},
                                    std::pair{"batch * heads_q", problem.batch * problem.heads_q}}) {
    if (value > kMaxInt / 4) return unsupported("{} is {}: the hopper engine takes up to {}", name, value, kMaxInt / 4);
  }
  return {};
}

}  // namespace strobe::hopper
