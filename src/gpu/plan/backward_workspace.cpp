// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/backward_workspace.h"

#include "call/workspace.h"
#include "gpu/plan/append_part.h"
#include "gpu/plan/backward_plan.h"

namespace strobe::gpu {

std::size_t BackwardWorkspace::take(Checked bytes) { return append_part(total_bytes, bytes, kWorkspaceAlignment); }

Checked BackwardWorkspace::take_rows(const AttentionProblem& problem, const BackwardParams& params, int block_m) {
  const Checked row_bytes = 4 * Checked(params.heads) * params.query_blocks * block_m;
  lse_log2 = take(row_bytes);
  d_sum = take(row_bytes);
  row_max = take(row_bytes);
  large_rows = take(4 * Checked(large_row_ctas(problem, params)));
  return row_bytes;
}

void set_rows(const BackwardWorkspace& offsets, std::byte* workspace, BackwardParams& params) {
  const auto floats = [&](std::size_t offset) { return reinterpret_cast<float*>(workspace + offset); };
  params.lse_log2 = floats(offsets.lse_log2);
  params.d_sum = floats(offsets.d_sum);
  params.row_max = floats(offsets.row_max);
  params.large_rows = reinterpret_cast<unsigned*>(workspace + offsets.large_rows);
}

}  // namespace strobe::gpu
