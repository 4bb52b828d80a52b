// SPDX-License-Identifier: Apache-2.0
// The times that plans predict: near measured ones, and in the order that less work asks for.
#include "gpu/plan/times.h"

#include <gtest/gtest.h>

#include <string>

#include "gpu/plan/plan_problem.h"
#include "sm80/times.h"
#include "sm90/times.h"

namespace strobe::gpu {
namespace {

using test::device_named;

AttentionProblem call(Pass pass, std::int64_t seqlen, std::int64_t head_dim, bool causal) {
  constexpr std::int64_t kTokens = 16384;
  constexpr std::int64_t kHidden = 2048;
  AttentionProblem problem = test::problem_of(seqlen, head_dim, head_dim);
  problem.pass = pass;
  problem.batch = kTokens / seqlen;
  problem.total_q = problem.total_k = kTokens;
  problem.heads_q = problem.heads_kv = kHidden / head_dim;
  if (causal) problem.causal = CausalMask::bottom_right;
  return problem;
}

PlannedWork sm90_work(const AttentionProblem& problem, const DeviceShape& shape) {
  if (problem.pass == Pass::forward) {
    return sm90::forward_work(problem, shape,
                              sm90::forward_plan(problem, shape, *sm90::forward_config(problem, shape)));
  }
  return sm90::backward_work(problem, shape,
                             sm90::backward_plan(problem, shape, *sm90::backward_config(problem, shape)));
}

PlannedWork sm80_work(const AttentionProblem& problem, const DeviceShape& shape) {
  if (problem.pass == Pass::forward) {
    return sm80::forward_work(problem, shape,
                              sm80::forward_plan(problem, shape, *sm80::forward_config(problem, shape)));
  }
  return sm80::backward_work(problem, shape,
                             sm80::backward_plan(problem, shape, *sm80::backward_config(problem, shape)));
}

double sm90_ms(const AttentionProblem& problem, std::string_view device = "H200") {
  return 1e3 * predicted_times(device_named(device), sm90_work(problem, device_named(device))).seconds();
}

double sm80_ms(const AttentionProblem& problem, std::string_view device = "H200") {
  return 1e3 * predicted_times(device_named(device), sm80_work(problem, device_named(device))).seconds();
}

/// docs/benchmarks/h200/with-flash-attention-3.json and h100/grouped_backward.json.
TEST(PredictedTimes, OfSm90KernelsAreNearMeasuredOnes) {
  constexpr double kOff = 0.12;
  const auto expect = [](const AttentionProblem& problem, double ms, std::string_view device = "H200") {
    EXPECT_NEAR(sm90_ms(problem, device) / ms, 1.0, kOff) << problem.seqlen_q << ' ' << problem.head_dim;
  };
  expect(call(Pass::forward, 512, 64, false), 0.1438);
  expect(call(Pass::forward, 8192, 64, true), 0.9642);
  expect(call(Pass::forward, 2048, 128, false), 0.3708);
  expect(call(Pass::forward, 8192, 128, true), 0.7295);
  expect(call(Pass::forward, 16384, 256, false), 2.6936);
  expect(call(Pass::backward, 1024, 64, false), 0.8242);
  expect(call(Pass::backward, 8192, 64, true), 2.5876);
  expect(call(Pass::backward, 512, 128, true), 0.3699);
  expect(call(Pass::backward, 16384, 128, false), 7.8292);
  expect(call(Pass::backward, 4096, 256, true), 1.0889);
  AttentionProblem grouped = call(Pass::backward, 8192, 128, true);
  grouped.heads_kv = 4;
  expect(grouped, 2.1717);
  expect(grouped, 2.3274, "H100");
}

/// docs/log/sm80.json, on an H200.
TEST(PredictedTimes, OfSm80KernelsAreNearMeasuredOnes) {
  constexpr double kOff = 0.15;
  const auto expect = [](const AttentionProblem& problem, double teraflops) {
    const double products = problem.pass == Pass::forward ? 4.0 : 10.0;
    const double ms = products * 16384.0 * 2048.0 * static_cast<double>(problem.seqlen_q) / teraflops / 1e9;
    EXPECT_NEAR(sm80_ms(problem) / ms, 1.0, kOff) << problem.seqlen_q << ' ' << problem.head_dim;
  };
  expect(call(Pass::forward, 4096, 64, false), 354.0);
  expect(call(Pass::forward, 4096, 128, false), 407.0);
  expect(call(Pass::forward, 4096, 256, false), 334.0);
  expect(call(Pass::backward, 4096, 64, false), 316.0);
  expect(call(Pass::backward, 4096, 128, false), 332.0);
  expect(call(Pass::backward, 4096, 256, false), 280.0);
}

/// 16 sequences of 32k keys, 32 heads for 8: 489 us on an H200.
TEST(PredictedTimes, OfOneQueryAreThoseOfMemory) {
  AttentionProblem problem = test::problem_of(32768, 128, 128);
  problem.batch = problem.total_q = 16;
  problem.heads_q = 32;
  problem.seqlen_q = 1;
  problem.total_k = problem.batch * problem.seqlen_k;
  const PredictedTimes times = predicted_times(test::kH200, sm80_work(problem, test::kH200));
  EXPECT_EQ(times.bound_by, "memory");
  EXPECT_NEAR(1e3 * times.seconds() / 0.4828, 1.0, 0.1);
  EXPECT_GT(sm80_ms(problem, "H100"), 1.3 * sm80_ms(problem, "H200"));
}

TEST(PredictedTimes, LessWorkTakesLessTime) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      const AttentionProblem full = call(pass, 4096, head_dim, false);
      const AttentionProblem causal = call(pass, 4096, head_dim, true);
      AttentionProblem window = causal;
      window.window.left = 511;
      for (const auto& [name, ms] : {std::pair{"sm90", &sm90_ms}, std::pair{"sm80", &sm80_ms}}) {
        EXPECT_LT(ms(causal, "H100"), 0.75 * ms(full, "H100")) << name;
        EXPECT_LT(ms(window, "H100"), 0.75 * ms(causal, "H100")) << name;
        EXPECT_GT(ms(full, "H100 PCIe"), ms(full, "H100")) << name;
      }
    }
  }
}

/// Items of several waves are apart by whole query heads, whose rows L2 does not hold.
TEST(PredictedTimes, CountWhatL2DoesNotHold) {
  AttentionProblem problem = call(Pass::backward, 8192, 128, true);
  problem.heads_kv = 4;
  sm90::BackwardPlan plan = sm90::backward_plan(problem, test::kH100, *sm90::backward_config(problem, test::kH100));
  plan.params.section_heads = 2;
  const PredictedTimes one_wave = predicted_times(test::kH100, sm90::backward_work(problem, test::kH100, plan));
  plan.params.section_heads = 8;
  const PredictedTimes several = predicted_times(test::kH100, sm90::backward_work(problem, test::kH100, plan));
  EXPECT_EQ(several.bound_by, "memory");
  EXPECT_GT(several.memory, 4.0 * one_wave.memory);
  EXPECT_NEAR(several.products / one_wave.products, 1.0, 0.02);
}

TEST(PredictedTimes, OfAllKnownDevicesArePositive) {
  for (const NamedDevice& device : kKnownDevices) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const AttentionProblem problem = call(pass, 4096, 128, true);
      EXPECT_GT(sm80_ms(problem, device.name), 0.1) << device.name;
      if (device.shape.compute_major != 9) continue;
      EXPECT_GT(sm90_ms(problem, device.name), 0.1) << device.name;
    }
  }
}

TEST(PredictedTimes, AreALineOfTheText) {
  AttentionProblem problem = call(Pass::backward, 4096, 128, true);
  const std::string line = explain_times(test::kH200, sm90_work(problem, test::kH200));
  EXPECT_TRUE(line.starts_with("time          1.")) << line;
  EXPECT_NE(line.find(" ms predicted, bound by products and what waits for them: products 0."), std::string::npos)
      << line;
  EXPECT_TRUE(line.ends_with(" ms\n")) << line;
  problem.packed_q = problem.packed_k = true;
  EXPECT_NE(explain_times(test::kH200, sm90_work(problem, test::kH200)).find("if sequences are equally long"),
            std::string::npos);
  problem.total_q = 0;
  EXPECT_EQ(explain_times(test::kH200, sm90_work(problem, test::kH200)), "");
}

}  // namespace
}  // namespace strobe::gpu
