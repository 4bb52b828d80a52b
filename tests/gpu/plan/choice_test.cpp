// SPDX-License-Identifier: Apache-2.0
// Choices in the place of the planner's rules: as text, from a table, and what plans make of them.
#include "gpu/plan/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "gpu/call_candidates.h"
#include "gpu/plan/plan_problem.h"
#include "gpu/tuned.h"
#include "runtime/temporary_folder.h"
#include "runtime/tuned_table.h"
#include "sm80/backward_plan.h"
#include "sm90/backward_plan.h"
#include "sm90/times.h"

namespace strobe::gpu {
namespace {

AttentionProblem backward_of(std::int64_t seqlen, std::int64_t heads_q, bool deterministic = false) {
  AttentionProblem problem = test::problem_of(seqlen, 128, 128);
  problem.pass = Pass::backward;
  problem.batch = 1;
  problem.heads_q = heads_q;
  problem.total_q = problem.total_k = seqlen;
  problem.causal = CausalMask::bottom_right;
  problem.deterministic = deterministic;
  return problem;
}

TEST(Choice, IsATextAndBack) {
  for (const std::string text : {"rule", "tiles=192x80x1", "section_heads=8", "part_heads=2", "split_ctas=-1",
                                 "split_ctas=264", "tiles=64x64x1 section_heads=4", "section_heads=1 part_heads=8",
                                 "tiles=1x2x3 section_heads=4 part_heads=5 split_ctas=6"}) {
    const std::optional<Choice> choice = parse_choice(text);
    ASSERT_TRUE(choice.has_value()) << text;
    EXPECT_EQ(text_of(*choice), text);
  }
  EXPECT_EQ(parse_choice("tiles=192x80x1 section_heads=8"),
            (Choice{.block_m = 192, .block_n = 80, .ctas = 1, .section_heads = 8}));
}

TEST(Choice, OfAnotherTextIsNone) {
  for (const std::string text :
       {"", "rules", "tiles=192x80", "tiles=192x80x1x1", "tiles=0x80x1", "section_heads=0", "section_heads=-1",
        "section_heads=1e3", "section_heads=99999999999", "part_heads=", "part_heads=2 section_heads=1",
        "section_heads=1 section_heads=2", "section_heads=1 ", " section_heads=1", "split_ctas=-2", "heads=3",
        "section_heads= 3", "section_heads=03"}) {
    EXPECT_FALSE(parse_choice(text).has_value()) << text;
  }
}

TEST(Choice, IsALineOfThePlansText) {
  EXPECT_EQ(explain_choice({}), "");
  EXPECT_EQ(explain_choice({{.section_heads = 8}, 1.064}),
            "choice        section_heads=8 (tuned: 1.06 times as fast as the rule's)\n");
  EXPECT_EQ(explain_choice({{.section_heads = 8}, 0.0}), "choice        section_heads=8 (asked for, not the rule's)\n");
}

TEST(Choice, ChangesABackwardsOrder) {
  const AttentionProblem problem = backward_of(8192, 64);
  const auto plan = [&](const Choice& choice) {
    return sm90::backward_plan(problem, test::kH100, *sm90::backward_config(problem, test::kH100, choice), choice);
  };
  EXPECT_EQ(plan({.section_heads = 3}).params.section_heads, 3);
  EXPECT_EQ(plan({.part_heads = 2}).params.part_heads, 2);
  EXPECT_EQ(plan({.part_heads = 2}).params.key_parts, 4);
  EXPECT_EQ(plan({.section_heads = 1 << 30}).params.section_heads, 16);  // 8 key heads in 2 parts
  EXPECT_EQ(plan({.part_heads = 1 << 30}).params.part_heads, plan({}).params.part_heads);
  EXPECT_TRUE(plan({.block_m = 64, .block_n = 64, .ctas = 1}).config.by_roles);
  EXPECT_FALSE(plan({.block_m = 32, .block_n = 64, .ctas = 1}).config.by_roles);
  const AttentionProblem ordered = backward_of(8192, 40, true);
  const auto part_heads = [&](int wanted) {
    return sm90::backward_plan(ordered, test::kH100, *sm90::backward_config(ordered, test::kH100),
                               {.part_heads = wanted})
        .params.part_heads;
  };
  EXPECT_EQ(part_heads(1), 1);
  EXPECT_EQ(part_heads(3), part_heads(0));  // does not divide 5
}

TEST(Choice, OrdersSumsOfShortSequencesOfGroupedHeads) {
  const AttentionProblem problem = backward_of(2048, 64, true);
  EXPECT_TRUE(sm90::backward_config(problem, test::kH100)->by_roles);
  EXPECT_TRUE(sm90::backward_config(problem, test::kH100, {.block_m = 64, .block_n = 128, .ctas = 1})->ordered);
}

TEST(Choice, ChangesTilesAndSplitsOfForwards) {
  AttentionProblem problem = test::problem_of(4096, 128, 128);
  problem.causal = CausalMask::bottom_right;
  problem.batch = 16;
  problem.total_q = problem.total_k = problem.batch * problem.seqlen_q;
  const sm90::forward::Config rule = *sm90::forward_config(problem, test::kH100);
  const sm90::forward::Config other =
      *sm90::forward_config(problem, test::kH100, {.block_m = 128, .block_n = 128, .ctas = 1});
  EXPECT_EQ(block_m(rule), 192);
  EXPECT_EQ(block_m(other), 128);
  EXPECT_EQ(other.schedule, rule.schedule);
  EXPECT_EQ(*sm90::forward_config(problem, test::kH100, {.block_m = 1, .block_n = 1, .ctas = 1}), rule);
  problem.batch = 2;
  problem.seqlen_q = 1;
  problem.total_q = problem.batch;
  const auto workers = [&](int split_ctas) {
    const Choice choice{.split_ctas = split_ctas};
    const sm90::forward::Config config = *sm90::forward_config(problem, test::kH100, choice);
    return sm90::forward_plan(problem, test::kH100, config, choice).workers;
  };
  EXPECT_EQ(workers(48), 48);
  EXPECT_EQ(workers(1 << 30), 132);
  EXPECT_EQ(workers(Choice::kWhole), 16);  // a tile each
}

TEST(Candidates, AreFewAndTheRulesFirst) {
  for (const std::string_view name : {"H100", "H20", "A10", "B200"}) {
    const NamedDevice device{name, device_named(name)};
    for (const AttentionProblem& problem :
         {backward_of(8192, 32), backward_of(32768, 64, true), test::problem_of(4096, 128, 128)}) {
      const Result<CallCandidates> call = candidates_of(problem, std::string(device.name), device.shape);
      ASSERT_TRUE(call.ok()) << call.status().message();
      const std::vector<Candidate>& candidates = call->candidates;
      ASSERT_GE(candidates.size(), 1U);
      EXPECT_LE(candidates.size(), 6U);
      EXPECT_EQ(candidates.front().choice, Choice());
      std::set<std::string> texts;
      for (const Candidate& candidate : candidates) {
        EXPECT_TRUE(texts.insert(text_of(candidate.choice)).second) << text_of(candidate.choice);
        EXPECT_GT(candidate.seconds, 0.0);
      }
    }
  }
}

/// On an H100, 64 query heads for 8 of 32k tokens: parts of two heads would pass through L2 again and again.
TEST(Candidates, LeaveOutOrdersThatL2DoesNotHold) {
  const AttentionProblem problem = backward_of(32768, 64, true);
  const auto seconds = [&](const Choice& choice) {
    const sm90::BackwardPlan plan =
        sm90::backward_plan(problem, test::kH100, *sm90::backward_config(problem, test::kH100, choice), choice);
    return predicted_times(test::kH100, sm90::backward_work(problem, test::kH100, plan)).seconds();
  };
  EXPECT_GT(seconds({.section_heads = 32, .part_heads = 2}), 1.8 * seconds({}));
  const Result<CallCandidates> call = candidates_of(problem, "H100", test::kH100);
  ASSERT_TRUE(call.ok()) << call.status().message();
  for (const Candidate& candidate : call->candidates) {
    EXPECT_LT(candidate.seconds, 1.15 * seconds({})) << text_of(candidate.choice);
  }
}

TEST(Candidates, RowInvariantForwardsHaveNone) {
  AttentionProblem problem = test::problem_of(4096, 128, 128);
  problem.row_invariant = true;
  EXPECT_EQ(candidates_of(problem, "H100", test::kH100).status().message(),
            "row_invariant forwards are not tuned: a choice would change their bits");
}

TEST(TunedName, CountsLengthsByTheNearestPowerOfTwo) {
  const auto name = [](std::int64_t batch, std::int64_t seqlen) {
    AttentionProblem problem = test::problem_of(seqlen, 128, 128);
    problem.batch = batch;
    problem.total_q = problem.total_k = batch * seqlen;
    return tuned_name("sm90", problem);
  };
  EXPECT_EQ(name(2, 4096),
            "sm90 {\"dtype\": \"bfloat16\", \"batch\": 2, \"heads_q\": 8, \"heads_kv\": 8, \"head_dim\": 128, "
            "\"head_dim_v\": 128, \"seqlen_q\": 4096, \"seqlen_k\": 4096, \"total_q\": 8192, \"total_k\": 8192, "
            "\"scale\": 1}");
  EXPECT_EQ(name(2, 4096), name(2, 5792));  // 4096 times the root of 2, less a little
  EXPECT_NE(name(2, 4096), name(2, 5793));
  EXPECT_EQ(name(2, 4096), name(2, 2897));
  EXPECT_NE(name(2, 4096), name(2, 2896));
  EXPECT_NE(name(2, 4096), name(3, 4096));
  EXPECT_EQ(name(4, 4096), name(3, 4096));
}

/// STROBE_TUNED names a table of that entry for the device.
PlannedChoice choice_by_table(const std::string& entry, const AttentionProblem& problem, int index) {
  const test::TemporaryFolder folder;
  runtime::CudaDevice device;
  device.index = index;
  device.name = "NVIDIA H100";
  device.compute_major = 9;
  device.multiprocessors = 132;
  const std::string path = folder / "tuned.txt";
  const std::string reason = runtime::write_tuned(path, {.device = runtime::tuned_device(device),
                                                         .library = runtime::tuned_library(),
                                                         .entries = {{tuned_name("sm90", problem), {entry, 1.25}}}});
  EXPECT_EQ(reason, "");
  ::setenv("STROBE_TUNED", path.c_str(), 1);
  const PlannedChoice choice = tuned_choice("sm90", problem, device);
  EXPECT_EQ(tuned_choice("sm80", problem, device).choice, Choice());  // other kernels, other choices
  ::unsetenv("STROBE_TUNED");
  return choice;
}

TEST(TunedChoice, IsTheTables) {
  const PlannedChoice found = choice_by_table("section_heads=4 part_heads=8", backward_of(8192, 64, true), 20);
  EXPECT_EQ(found.choice, (Choice{.section_heads = 4, .part_heads = 8}));
  EXPECT_EQ(found.gain, 1.25);
  EXPECT_EQ(choice_by_table("heads=4", backward_of(8192, 64, true), 21).choice, Choice());
}

TEST(TunedChoice, RowInvariantForwardsTakeNone) {
  AttentionProblem problem = test::problem_of(4096, 128, 128);
  problem.row_invariant = true;
  EXPECT_EQ(choice_by_table("tiles=128x128x1", problem, 22).choice, Choice());
  problem.row_invariant = false;
  EXPECT_NE(choice_by_table("tiles=128x128x1", problem, 23).choice, Choice());
}

}  // namespace
}  // namespace strobe::gpu
