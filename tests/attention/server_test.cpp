// SPDX-License-Identifier: Apache-2.0
// The simulated server on the CPU. STROBE_SERVER_STEPS: how many steps; STROBE_SEED: another course of events.
#include <gtest/gtest.h>

#include "reference/bound/arithmetic.h"
#include "seeds.h"
#include "simulated_server.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

class CpuServer final : public SimulatedServer {
 public:
  using SimulatedServer::SimulatedServer;

 protected:
  reference::ArithmeticModel run(const ServerCall& call) override {
    const Status appended = append(call.append, {.threads = 1});
    EXPECT_TRUE(appended.ok()) << appended.message();
    const Result<Plan> plan = make_plan(call.forward, call.options, {.threads = 1});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (!plan.ok()) return {};
    const Status status = plan->run(call.forward, {.threads = 1});
    EXPECT_TRUE(status.ok()) << status.message();
    return reference::arithmetic_of(*plan);
  }
};

TEST(Server, MatchesTheReference) {
  CpuServer({}, number_from("STROBE_SEED", 1)).run_steps(static_cast<int>(number_from("STROBE_SERVER_STEPS", 300)));
}

TEST(Server, MatchesTheReferenceInBfloat16) {
  CpuServer({.dtype = DType::bfloat16, .page_size = 16}, number_from("STROBE_SEED", 1))
      .run_steps(static_cast<int>(number_from("STROBE_SERVER_STEPS", 100)));
}

}  // namespace
}  // namespace strobe::test
