// SPDX-License-Identifier: Apache-2.0
// Plans of equal calls are made once.
#include "api/plan_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "mean_engine.h"

namespace strobe::test {
namespace {

AttentionProblem problem_of(std::int64_t seqlen) {
  AttentionProblem problem;
  problem.seqlen_q = problem.seqlen_k = seqlen;
  return problem;
}

std::shared_ptr<const engine::PlannedCall> some_plan() { return *mean_engine().plan_forward(problem_of(1), {}); }

TEST(PlanCache, FindsThePlanOfAnEqualProblemEngineAndThreads) {
  const auto plan = some_plan();
  const Execution two_threads{.threads = 2};
  api::keep_plan(problem_of(100), two_threads, plan);
  EXPECT_EQ(api::find_plan(problem_of(100), two_threads), plan);
  EXPECT_EQ(api::find_plan(problem_of(101), two_threads), nullptr);
  EXPECT_EQ(api::find_plan(problem_of(100), {.threads = 3}), nullptr);
  EXPECT_EQ(api::find_plan(problem_of(100), {.engine = Engine::cpu, .threads = 2}), nullptr);
  EXPECT_EQ(api::find_plan(problem_of(100), {.kernels = "sm80", .threads = 2}), nullptr);
}

TEST(PlanCache, DropsThePlanThatWasNotUsedForLongest) {
  const auto plan = some_plan();
  constexpr std::int64_t kMost = 32;
  for (std::int64_t seqlen = 1; seqlen <= kMost; ++seqlen) api::keep_plan(problem_of(seqlen), {}, plan);
  EXPECT_NE(api::find_plan(problem_of(1), {}), nullptr);  // used now: the next oldest is 2
  api::keep_plan(problem_of(kMost + 1), {}, plan);
  EXPECT_NE(api::find_plan(problem_of(1), {}), nullptr);
  EXPECT_EQ(api::find_plan(problem_of(2), {}), nullptr);
}

TEST(PlanCache, IsEachThreadsOwn) {
  api::keep_plan(problem_of(500), {}, some_plan());
  std::thread([] { EXPECT_EQ(api::find_plan(problem_of(500), {}), nullptr); }).join();
}

}  // namespace
}  // namespace strobe::test
