// SPDX-License-Identifier: Apache-2.0
// Random configurations against the float64 reference, and caches with the same keys against both. STROBE_SEED=n runs
// the one case of that seed; STROBE_FIRST_SEED and STROBE_SEEDS choose a range, STROBE_INSTRUCTION_SET=SSE4 what the
// engine runs on.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cache_copy.h"
#include "jvp_matches.h"
#include "matches_reference.h"
#include "random_case.h"
#include "run_on_threads.h"
#include "seeds.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr int kSkipped = 77;

std::string program_path;

void run_seed(std::uint64_t seed) {
  const ParallelFor parallel_for = run_on_threads;
  Execution execution;
  execution.threads = static_cast<int>(seed % 4);
  if (seed % 5 == 0) execution.parallel_for = &parallel_for;
  // Every fourth case decodes: few queries against keys beyond several chunks.
  EngineLimits limits;
  if (seed % 4 == 3) limits = {.longest = 400, .most_queries = 16};
  const AttentionCase attention = random_case(seed, limits);
  SCOPED_TRACE(describe(attention));
  CaseTensors tensors(attention);
  expect_tensors_match_reference(tensors, attention, execution);
  const bool has_jvp = !attention.tree && !attention.has_qv && !attention.text && is_normalized(attention);
  if (seed % 8 == 0 && has_jvp) expect_jvp_matches_reference(attention, execution);
  Random random(seed);
  const CacheKind kind = seed % 2 == 0 ? CacheKind::pages : CacheKind::entries;
  CacheCopy(tensors.forward_arguments(), kind, random).expect_the_same_results(attention.options, execution);
}

// Whether the engine runs on the instruction set of that name.
bool engine_runs_on(const std::string& name) {
  const CaseTensors tensors({.q = {.rows = 1}, .k = {.rows = 1}});
  const Result<Plan> plan = make_plan(tensors.forward_arguments());
  return plan.ok() && plan->explain().find("instructions  " + name + " (") != std::string::npos;
}

// Makes Highway choose the instruction set of that name; false where the machine or the build lacks it.
bool restrict_to(const std::string& name) {
  for (std::int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    return engine_runs_on(name);
  }
  return false;
}

TEST(RandomConfigurations, MatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(400);
  for (const std::uint64_t seed : seeds) {
    run_seed(seed);
    if (HasFailure()) {
      FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path;
    }
  }
  RecordProperty("configurations", static_cast<int>(seeds.size()));
}

}  // namespace
}  // namespace strobe::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  strobe::test::program_path = argv[0];
  const char* instruction_set = std::getenv("STROBE_INSTRUCTION_SET");
  if (instruction_set != nullptr && !strobe::test::restrict_to(instruction_set)) {
    std::cout << "this machine or this build has no " << instruction_set << '\n';
    return strobe::test::kSkipped;
  }
  return RUN_ALL_TESTS();
}
