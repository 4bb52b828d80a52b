// SPDX-License-Identifier: Apache-2.0
// Row-invariant forwards that convert K and V in 8 bits compile without spills, with few queries and many.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>

#include "gpu/kernels/sm90/compiled_kernels.h"
#include "gpu/plan/plan_problem.h"
#include "sm90/forward_variant.h"

namespace strobe::sm90 {
namespace {

struct StoredOption {
  const char* name;
  void (*set)(AttentionProblem& problem);
};

std::ostream& operator<<(std::ostream& out, const StoredOption& option) { return out << option.name; }

constexpr StoredOption kStoredOptions[] = {
    {"plain", [](AttentionProblem&) {}},
    {"pages", [](AttentionProblem& p) { p.has_seqused_k = true, p.page_size = 16; }},
    {"window", [](AttentionProblem& p) { p.window.left = 1023; }},
    {"alibi", [](AttentionProblem& p) { p.modifiers.has_alibi = true; }},
};

class Sm90RowInvariantStored : public CompiledKernels,
                               public testing::WithParamInterface<std::tuple<StoredOption, std::int64_t, bool>> {};

TEST_P(Sm90RowInvariantStored, Compile) {
  const auto& [option, head_dim, few] = GetParam();
  for (const std::int64_t batch : {1, 40}) {  // segments are parts, or join in a CTA
    AttentionProblem problem = test::problem_of(16384, head_dim, head_dim);
    problem.stored = {.dtype = DType::float8_e4m3, .k_rows = 16384, .v_rows = 16384};
    problem.causal = CausalMask::bottom_right;
    problem.row_invariant = true;
    problem.batch = batch;
    problem.heads_q = 32;
    problem.seqlen_q = few ? 1 : 128;
    problem.total_q = batch * problem.seqlen_q;
    option.set(problem);
    const forward::Config config = test::config_of(problem);
    ASSERT_TRUE(converts(config));
    expect_compiles_without_spills(forward_variant(config));
  }
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<StoredOption, std::int64_t, bool>>& one) {
  const auto& [option, head_dim, few] = one.param;
  return std::string(option.name) + "_" + std::to_string(head_dim) + (few ? "_few" : "_many");
}

INSTANTIATE_TEST_SUITE_P(All, Sm90RowInvariantStored,
                         testing::Combine(testing::ValuesIn(kStoredOptions), testing::Values(64, 128, 256),
                                          testing::Bool()),
                         name_of_case);

}  // namespace
}  // namespace strobe::sm90
