// SPDX-License-Identifier: Apache-2.0
// The widths of models beyond 256 columns, by every kernel of the CPU engine: 320/256, 512/512, 576/512, 288/288.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "cache_copy.h"
#include "jvp_matches.h"
#include "matches_reference.h"

namespace strobe::test {
namespace {

struct Widths {
  std::int64_t head_dim;
  std::int64_t head_dim_v;
};

class WideHeads : public testing::TestWithParam<Widths> {
 protected:
  AttentionCase wide(DType dtype, std::int64_t queries, std::int64_t keys) const {
    AttentionCase attention;
    attention.dtype = dtype;
    attention.batch = 2;
    attention.heads_q = 2;
    attention.head_dim = GetParam().head_dim;
    attention.head_dim_v = GetParam().head_dim_v;
    attention.q = {.rows = queries};
    attention.k = {.rows = keys};
    attention.seed = 1;
    return attention;
  }
};

// bfloat16 takes the bfloat16 kernels where the machine has them.
TEST_P(WideHeads, ForwardAndBackwardMatchTheReference) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    AttentionCase attention = wide(dtype, 70, 90);
    attention.options.causal = CausalMask::bottom_right;
    SCOPED_TRACE(describe(attention));
    expect_case_matches_reference(attention);
    attention.heads_kv = 2;
    attention.options.deterministic = true;
    attention.options.row_invariant = true;
    expect_case_matches_reference(attention);
  }
}

TEST_P(WideHeads, FewQueriesMatchTheReference) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const std::int64_t queries : {1, 3, 12}) {
      AttentionCase attention = wide(dtype, queries, 300);
      attention.wants_lse = queries != 3;
      SCOPED_TRACE(describe(attention));
      expect_case_matches_reference(attention);
    }
  }
}

TEST_P(WideHeads, CachesHaveTheBitsOfContiguousKeys) {
  for (const CacheKind kind : {CacheKind::pages, CacheKind::entries}) {
    for (const std::int64_t queries : {1, 50}) {
      const AttentionCase attention = wide(DType::bfloat16, queries, 130);
      SCOPED_TRACE(describe(attention));
      CaseTensors tensors(attention);
      expect_tensors_match_reference(tensors, attention);
      Random random(static_cast<std::uint64_t>(queries));
      CacheCopy(tensors.forward_arguments(), kind, random).expect_the_same_results(attention.options, {});
    }
  }
}

TEST_P(WideHeads, JvpMatchesTheReference) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const AttentionCase attention = wide(dtype, 40, 60);
    SCOPED_TRACE(describe(attention));
    expect_jvp_matches_reference(attention);
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, WideHeads,
                         testing::Values(Widths{320, 256}, Widths{512, 512}, Widths{576, 512}, Widths{288, 288}),
                         [](const auto& widths) {
                           return std::to_string(widths.param.head_dim) + "_" + std::to_string(widths.param.head_dim_v);
                         });

}  // namespace
}  // namespace strobe::test
