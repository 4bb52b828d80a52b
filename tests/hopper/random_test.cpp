// SPDX-License-Identifier: Apache-2.0
// Random configurations on a GPU against the float64 reference: every option of the engine in any combination,
// sequences up to 2,000, outputs and their guards poisoned, NaN wherever a result must not depend on it. seeds.h says
// how seeds are chosen; STROBE_DEBUG_KERNELS=1 takes variants whose waits trap and whose shared memory starts as NaN.
#include <array>
#include <iostream>

#include "attention/matches_reference.h"
#include "attention/random_case.h"
#include "attention/seeds.h"
#include "device_copies.h"
#include "hopper/forward.h"
#include "hopper_test.h"
#include "reference/bound/arithmetic.h"

namespace strobe::test {
namespace {

std::string program_path;

// Kernels are compiled on first use: so many seeds in a row share dtype, compiled head_dims and options.
constexpr std::uint64_t kSeedsPerKernel = 32;

/// 16-bit dtypes, head_dims up to 256 that are multiples of 8, rows aligned to 16 bytes; forward only.
EngineLimits hopper_limits(std::uint64_t group) {
  Random random(group);
  EngineLimits limits;
  limits.dtypes = {random.one_of({DType::float16, DType::bfloat16})};
  limits.alignment = 8;
  using HeadDims = std::array<std::int64_t, 2>;
  limits.head_dims = {random.one_of({HeadDims{32, 32}, HeadDims{64, 64}, HeadDims{64, 64}, HeadDims{96, 96},
                                     HeadDims{128, 128}, HeadDims{128, 128}, HeadDims{192, 128}, HeadDims{192, 192},
                                     HeadDims{256, 256}, HeadDims{64, 256}})};
  limits.longest = 2000;
  limits.bias = limits.block_mask = limits.dropout = limits.backward = false;
  return limits;
}

AttentionCase hopper_case(std::uint64_t seed) {
  const EngineLimits limits = hopper_limits(seed / kSeedsPerKernel);
  AttentionCase attention = random_case(seed, limits);
  const AttentionCase shared = random_case(seed / kSeedsPerKernel * kSeedsPerKernel, limits);
  attention.options = shared.options;
  attention.alibi = shared.alibi;
  attention.has_sink = shared.has_sink;
  attention.wants_max_logits = shared.wants_max_logits;
  return attention;
}

class HopperRandom : public HopperTest {
 protected:
  Result<Plan> plan_of(const ForwardArguments& arguments, const AttentionOptions& options) {
    if (number_from("STROBE_DEBUG_KERNELS", 0) == 0) return make_plan(arguments, options);
    const hopper::VariantScope scope([](hopper::forward::Config& config) { config.debug = true; });
    return make_plan(arguments, options);
  }

  void run_seed(std::uint64_t seed) {
    const AttentionCase attention = hopper_case(seed);
    SCOPED_TRACE(describe(attention));
    CaseTensors tensors(attention);
    DeviceCopies copies(device());
    const ForwardArguments arguments =
        tensors.forward_arguments([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    const Result<Plan> plan = plan_of(arguments, attention.options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Status status = plan->run(arguments, {.stream = stream().get()});
    ASSERT_TRUE(status.ok()) << status.message();
    copies.download(tensors.forward_outputs());
    expect_forward_matches(tensors, attention, reference::arithmetic_of(Engine::hopper, attention.dtype));
    if (seed % 4 == 0) expect_the_same_again(*plan, arguments, tensors, copies);
  }

  /// Poisons the outputs once more: another run gives the same bits.
  void expect_the_same_again(const Plan& plan, const ForwardArguments& arguments, CaseTensors& tensors,
                             DeviceCopies& copies) {
    std::vector<std::vector<std::byte>> first;
    for (GuardedTensor* const output : tensors.forward_outputs()) {
      first.push_back(output->element_bytes());
      output->poison();
      copies.upload(*output);
    }
    const Status status = plan.run(arguments, {.stream = stream().get()});
    ASSERT_TRUE(status.ok()) << status.message();
    copies.download(tensors.forward_outputs());
    std::vector<std::vector<std::byte>> second;
    for (const GuardedTensor* const output : tensors.forward_outputs()) second.push_back(output->element_bytes());
    EXPECT_TRUE(first == second) << "another run gave other bits";
  }
};

TEST_F(HopperRandom, MatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(400);
  for (const std::uint64_t seed : seeds) {
    run_seed(seed);
    if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path;
  }
  std::cout << seeds.size() << " configurations\n";
}

}  // namespace
}  // namespace strobe::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  strobe::test::program_path = argv[0];
  return RUN_ALL_TESTS();
}
