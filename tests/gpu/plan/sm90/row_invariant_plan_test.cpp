// SPDX-License-Identifier: Apache-2.0
// Row-invariant calls: what every plan has in common.
#include <gtest/gtest.h>

#include <utility>

#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/tile/panel.h"

namespace strobe::sm90 {
namespace {

using test::config_of;
using test::problem_of;

/// A row's blocks and segments of keys do not depend on the call's shape, and every variant fits.
TEST(Sm90ForwardPlan, RowInvariantCallsHaveOneGridOfKeys) {
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{32, 32}, {64, 64}, {96, 128}, {128, 128}, {192, 128}, {64, 256}, {256, 256}}) {
    for (const std::int64_t queries : {1, 4, 16, 200, 5000}) {
      for (const std::int64_t keys : {100, 5000, 70000}) {
        for (int layout = 0; layout < 6; ++layout) {
          AttentionProblem problem = problem_of(keys, head_dim, head_dim_v);
          problem.row_invariant = true;
          problem.heads_kv = layout % 2 == 0 ? 8 : 2;
          problem.seqlen_q = queries;
          problem.total_q = queries * problem.batch;
          problem.causal = layout == 1 ? CausalMask::none : CausalMask::bottom_right;
          problem.has_seqused_k = layout > 1;
          problem.page_size = layout == 3 ? 12 : layout == 5 ? 16 : 0;
          if (layout > 3) problem.stored = {.dtype = DType::int8, .k_rows = 1, .v_rows = keys};
          const forward::Config config = config_of(problem);
          AttentionProblem other = problem_of(100000, head_dim, head_dim_v);
          other.row_invariant = true;
          const forward::Config longest = config_of(other);
          EXPECT_EQ(config.block_n, longest.block_n);
          EXPECT_GT(longest.segment_blocks, 0);
          if (keys > 1024) {
            EXPECT_EQ(config.segment_blocks, longest.segment_blocks);
          }
          EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes) << queries << " rows, layout " << layout;
        }
      }
    }
  }
}

}  // namespace
}  // namespace strobe::sm90
