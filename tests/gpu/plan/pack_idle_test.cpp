// SPDX-License-Identifier: Apache-2.0
// The pack has the kernels of both tiles: of plain calls that fill a device, and of those that leave it idle.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/plan/plan_problem.h"
#include "gpu/variant/pack_list.h"
#include "runtime/pack/common_variants.h"
#include "sm90/idle_calls.h"
#include "sm90/list_kernels.h"

namespace strobe::gpu {
namespace {

const std::set<std::string>& packed() {
  static const std::set<std::string> kernels = [] {
    std::set<std::string> all;
    for (const runtime::CommonVariant& kernel : runtime::common_variants()) all.insert(kernel.variant.expression);
    return all;
  }();
  return kernels;
}

void expect_in_pack(const AttentionProblem& problem, const DeviceShape& shape) {
  PackList list;
  ASSERT_TRUE(sm90::list_kernels(problem, shape, {}, list).ok());
  for (const runtime::CommonVariant& kernel : list.take()) {
    EXPECT_TRUE(packed().contains(kernel.variant.expression)) << kernel.variant.name;
  }
}

/// visit(call) for each plain one of both passes with that many sequences.
template <class Visit>
void for_plain_calls(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv, const Visit& visit) {
  for_common_shapes([&](DType dtype, std::int64_t head_dim, CausalMask causal) {
    for (const std::int64_t seqlen : {300, 512, 1000, 1024, 2048, 4096}) {
      AttentionProblem problem = test::problem_of(seqlen, head_dim, head_dim);
      problem.dtype = dtype;
      problem.causal = causal;
      problem.batch = batch;
      problem.total_q = problem.total_k = batch * seqlen;
      problem.heads_q = heads_q;
      problem.heads_kv = heads_kv;
      visit(problem);
      problem.pass = Pass::backward;
      for (const bool deterministic : {false, true}) {
        problem.deterministic = deterministic;
        visit(problem);
      }
    }
  });
}

TEST(Pack, HasTheTilesOfCallsThatLeaveADeviceIdle) {
  int idle = 0;
  for (const std::string_view device : {"H100", "H200", "H100 PCIe", "H20"}) {
    const DeviceShape& shape = device_named(device);
    for (const auto& [heads_q, heads_kv] : {std::pair{8, 8}, {16, 16}, {32, 8}, {32, 32}, {64, 8}}) {
      for_plain_calls(1, heads_q, heads_kv, [&](const AttentionProblem& problem) {
        if (!sm90::rule_left(problem, shape).has_value()) return;
        ++idle;
        expect_in_pack(problem, shape);
      });
    }
  }
  EXPECT_GT(idle, 100);
}

TEST(Pack, HasTheTilesOfCallsThatFillADevice) {
  for_plain_calls(64, 16, 16, [&](const AttentionProblem& problem) {
    EXPECT_FALSE(sm90::rule_left(problem, test::kH200).has_value());
    expect_in_pack(problem, test::kH200);
  });
}

}  // namespace
}  // namespace strobe::gpu
