// SPDX-License-Identifier: Apache-2.0
// What is planned for every known device: planned.txt has it as a table, which `device_plan_tests
// --gtest_filter=Planned.AreAsTheTableSays` writes to the file that STROBE_PLANNED names. And what every plan must
// keep.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/plan/backward_plan.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm80/backward/smem.h"
#include "kernels/sm80/forward/smem.h"
#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/forward/smem.h"
#include "sm80/backward_plan.h"
#include "sm80/forward_plan.h"
#include "sm90/backward_plan.h"
#include "sm90/few_rows.h"
#include "sm90/forward_plan.h"
#include "sm90/tile_fit.h"

namespace strobe::gpu {
namespace {

struct PlannedCase {
  std::string name;
  AttentionProblem problem;
  std::vector<std::string_view> devices{};  // empty: all that are known
};

AttentionProblem call_of(Pass pass, std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                         std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim, bool causal) {
  AttentionProblem problem = test::problem_of(seqlen_k, head_dim, head_dim);
  problem.pass = pass;
  problem.batch = batch;
  problem.heads_q = heads_q;
  problem.heads_kv = heads_kv;
  problem.seqlen_q = seqlen_q;
  problem.total_q = batch * seqlen_q;
  problem.total_k = batch * seqlen_k;
  if (causal) problem.causal = CausalMask::bottom_right;
  return problem;
}

AttentionProblem deterministic(AttentionProblem problem) {
  problem.deterministic = true;
  return problem;
}

/// One sequence each, short ones of which leave GPUs idle: the more so, the more multiprocessors they have.
void add_single_sequences(std::vector<PlannedCase>& cases) {
  struct Calls {
    std::string_view name, mask;
    AttentionProblem problem;  // but for its lengths
  };
  const Calls calls[] = {
      {"forward", "", call_of(Pass::forward, 1, 16, 16, 0, 0, 64, false)},
      {"forward", ", causal", call_of(Pass::forward, 1, 16, 16, 0, 0, 64, true)},
      {"forward", "", call_of(Pass::forward, 1, 32, 8, 0, 0, 128, false)},
      {"forward", ", causal", call_of(Pass::forward, 1, 16, 16, 0, 0, 128, true)},
      {"backward", ", causal", call_of(Pass::backward, 1, 16, 16, 0, 0, 64, true)},
      {"backward", "", call_of(Pass::backward, 1, 16, 16, 0, 0, 128, false)},
      {"backward", ", causal", call_of(Pass::backward, 1, 32, 8, 0, 0, 128, true)},
      {"deterministic", ", causal", deterministic(call_of(Pass::backward, 1, 32, 8, 0, 0, 128, true))}};
  for (const auto& [name, mask, problem] : calls) {
    for (const std::int64_t seqlen : {256, 512, 1024, 2048, 4096}) {
      PlannedCase one{.name = fmt::format("{}, 1 x {}, {} heads for {} of {}{}", name, seqlen, problem.heads_q,
                                          problem.heads_kv, problem.head_dim, mask),
                      .problem = problem,
                      .devices = {"H100", "H100 PCIe", "H20"}};
      one.problem.seqlen_q = one.problem.seqlen_k = one.problem.total_q = one.problem.total_k = seqlen;
      cases.push_back(std::move(one));
    }
  }
}

std::vector<PlannedCase> planned_cases() {
  const auto forward = [](auto... values) { return call_of(Pass::forward, values...); };
  const auto backward = [](auto... values) { return call_of(Pass::backward, values...); };
  std::vector<PlannedCase> cases = {
      {"forward, 4 x 4k, 16 heads of 128, causal", forward(4, 16, 16, 4096, 4096, 128, true)},
      {"forward, 1 x 16k, 32 heads of 64", forward(1, 32, 32, 16384, 16384, 64, false)},
      {"forward, 4 x 4k, 8 heads of 256, causal", forward(4, 8, 8, 4096, 4096, 256, true)},
      {"forward, 16 x 1 of 32k, 32 heads for 8 of 128", forward(16, 32, 8, 1, 32768, 128, true)},
      {"forward, 1 x 1 of 4k, 32 heads for 8 of 128", forward(1, 32, 8, 1, 4096, 128, true)},
      {"forward, 1 x 16 of 64k, 32 heads for 8 of 128", forward(1, 32, 8, 16, 65536, 128, true)},
      {"backward, 1 x 8k, 32 heads for 8 of 128, causal", backward(1, 32, 8, 8192, 8192, 128, true)},
      {"backward, 1 x 8k, 64 heads for 8 of 128, causal", backward(1, 64, 8, 8192, 8192, 128, true)},
      {"backward, 4 x 4k, 32 heads of 64, causal", backward(4, 32, 32, 4096, 4096, 64, true)},
      {"backward, 4 x 4k, 16 heads of 128", backward(4, 16, 16, 4096, 4096, 128, false)},
      {"backward, 4 x 4k, 8 heads of 256, causal", backward(4, 8, 8, 4096, 4096, 256, true)},
      {"deterministic, 1 x 8k, 64 heads for 8 of 128, causal",
       deterministic(backward(1, 64, 8, 8192, 8192, 128, true))},
      {"deterministic, 1 x 16k, 32 heads of 64, causal", deterministic(backward(1, 32, 32, 16384, 16384, 64, true))}};
  add_single_sequences(cases);
  return cases;
}

std::string split_text(bool splits, int workers) { return splits ? fmt::format(", {} CTAs share keys", workers) : ""; }

std::string sm90_forward(const AttentionProblem& problem, const DeviceShape& shape) {
  const sm90::forward::Config config = *sm90::forward_config(problem, shape);
  const sm90::ForwardPlan plan = sm90::forward_plan(problem, shape, config);
  EXPECT_TRUE(sm90::fits(config));
  EXPECT_LE(plan.workers, shape.multiprocessors * config.ctas_per_sm);
  const int dealt = plan.list == nullptr ? 0 : plan.list->period_heads * plan.tiles.m_tiles;
  EXPECT_EQ(plan.list == nullptr ? 0 : plan.list->first[plan.workers], dealt);
  return fmt::format("sm90, {} x {}, {} CTAs{}", block_m(config), config.block_n, plan.workers,
                     config.schedule == Schedule::dealt   ? ", dealt"
                     : config.schedule == Schedule::split ? ", sharing keys"
                                                          : "");
}

std::string sm90_backward(const AttentionProblem& problem, const DeviceShape& shape) {
  const sm90::backward::Config config = *sm90::backward_config(problem, shape);
  const sm90::BackwardPlan plan = sm90::backward_plan(problem, shape, config);
  const auto& params = plan.params;
  EXPECT_LE(smem_plan(plan.config).total_bytes, shape.shared_bytes);
  EXPECT_GE(params.section_heads, 1);
  EXPECT_LE(params.section_heads, backward_key_heads(problem) * params.key_parts);
  EXPECT_GE(params.part_heads * params.key_parts, params.heads_per_kv);
  EXPECT_LT(params.part_heads * (params.key_parts - 1), params.heads_per_kv);
  EXPECT_EQ(config.ordered ? params.heads_per_kv % params.part_heads : 0, 0);
  return fmt::format("sm90, {} keys x {}{}, {} in flight, {} query heads an item", block_n(config), config.block_m,
                     config.by_roles  ? " by roles"
                     : config.ordered ? " in order"
                                      : "",
                     params.section_heads, params.part_heads);
}

std::string sm80_forward(const AttentionProblem& problem, const DeviceShape& shape) {
  const sm80::forward::Config config = *sm80::forward_config(problem, shape);
  const sm80::ForwardPlan plan = sm80::forward_plan(problem, shape, config);
  EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
  EXPECT_GE(plan.order.section_heads, 1);
  EXPECT_LE(splits(config) ? plan.workers : 0, shape.multiprocessors * config.ctas_per_sm);
  return fmt::format("sm80, {} x {}, {} CTAs each{}{}", block_m(config), config.block_n, config.ctas_per_sm,
                     plan.order.section_heads > 1 ? fmt::format(", {} in flight", plan.order.section_heads) : "",
                     split_text(splits(config), plan.workers));
}

std::string sm80_backward(const AttentionProblem& problem, const DeviceShape& shape) {
  const sm80::backward::Config config = *sm80::backward_config(problem, shape);
  const sm80::BackwardPlan plan = sm80::backward_plan(problem, shape, config);
  EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
  EXPECT_GE(plan.params.section_heads, 1);
  EXPECT_LE(plan.params.section_heads, backward_key_heads(problem));
  return fmt::format("sm80, {} keys x {}, {} CTAs each, {} in flight", block_n(config), config.block_m,
                     config.ctas_per_sm, plan.params.section_heads);
}

std::string planned_text(const AttentionProblem& problem, const DeviceShape& shape) {
  const bool decodes = problem.pass == Pass::forward && sm90::is_decode(problem);
  const bool sm90 = shape.compute_major == 9 && !decodes;
  if (problem.pass == Pass::forward) return sm90 ? sm90_forward(problem, shape) : sm80_forward(problem, shape);
  return sm90 ? sm90_backward(problem, shape) : sm80_backward(problem, shape);
}

/// Each call, and below it each plan with the devices that it is for.
std::string planned_table() {
  std::string table;
  for (const auto& [name, problem, devices] : planned_cases()) {
    table += name + '\n';
    std::vector<std::pair<std::string, std::string>> plans;  // and devices
    for (const NamedDevice& device : kKnownDevices) {
      if (!devices.empty() && std::ranges::find(devices, device.name) == devices.end()) continue;
      const std::string plan = planned_text(problem, device.shape);
      const auto known = std::ranges::find(plans, plan, &std::pair<std::string, std::string>::first);
      if (known == plans.end()) {
        plans.emplace_back(plan, device.name);
      } else {
        known->second += ", " + std::string(device.name);
      }
    }
    for (const auto& [plan, names] : plans) table += fmt::format("  {}: {}\n", plan, names);
  }
  return table;
}

TEST(Planned, AreAsTheTableSays) {
  const std::string table = planned_table();
  if (const char* const path = std::getenv("STROBE_PLANNED"); path != nullptr) std::ofstream(path) << table;
  std::ifstream file(STROBE_PLANNED_TABLE);
  const std::string expected{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(table, expected);
}

/// Devices that nobody makes, too.
TEST(Planned, PlansKeepTheirLimitsOnEveryDevice) {
  for (const int multiprocessors : {1, 7, 78, 114, 132, 160, 400}) {
    for (const std::size_t l2_mb : {1, 50, 500}) {
      DeviceShape shape = test::kH100;
      shape.multiprocessors = multiprocessors;
      shape.l2_bytes = l2_mb << 20U;
      DeviceShape ampere = device_named("A10");
      ampere.multiprocessors = multiprocessors;
      ampere.l2_bytes = shape.l2_bytes;
      for (const auto& [name, problem, devices] : planned_cases()) {
        SCOPED_TRACE(fmt::format("{}, {} multiprocessors, {} MB of L2", name, multiprocessors, l2_mb));
        EXPECT_NE(planned_text(problem, shape), "");
        EXPECT_NE(planned_text(problem, ampere), "");
      }
    }
  }
}

}  // namespace
}  // namespace strobe::gpu
