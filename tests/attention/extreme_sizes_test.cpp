// SPDX-License-Identifier: Apache-2.0
// Extents of 0, lengths that no 64 bits hold the product of, and many calls back to back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <vector>

#include "strobe/attention.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

/// Pages of memory that this process holds.
std::int64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  file >> size >> resident;
  return resident;
}

TEST(ExtremeSizes, NoQueryHeadsGiveNoOutputAndZeroGradients) {
  constexpr std::int64_t kKeys = 8;
  constexpr std::int64_t kElements = kKeys * 2 * 16;
  for (const bool row_invariant : {false, true}) {
    std::vector<float> k(kElements, 1.0F);
    std::vector<float> dk(kElements, 7.0F);
    std::vector<float> dv(kElements, 7.0F);
    float none = 7.0F;
    const float* q = &none;
    const float* keys = k.data();
    const auto rows = [](auto* data) { return tensor(data, {1, kKeys, 0, 16}); };
    const auto lse = [](auto* data) { return tensor(data, {1, 0, kKeys}); };
    const auto of_keys = [](auto* data) { return tensor(data, {1, kKeys, 2, 16}); };
    ForwardArguments forward_arguments;
    forward_arguments.q = rows(q);
    forward_arguments.k = forward_arguments.v = of_keys(keys);
    forward_arguments.o = rows(&none);
    forward_arguments.lse = lse(&none);
    AttentionOptions options;
    options.row_invariant = row_invariant;
    const Status forwarded = forward(forward_arguments, options);
    EXPECT_TRUE(forwarded.ok()) << forwarded.message();
    BackwardArguments backward_arguments;
    backward_arguments.q = backward_arguments.o = backward_arguments.d_o = rows(q);
    backward_arguments.k = backward_arguments.v = of_keys(keys);
    backward_arguments.lse = lse(q);
    backward_arguments.dq = rows(&none);
    backward_arguments.dk = of_keys(dk.data());
    backward_arguments.dv = of_keys(dv.data());
    const Status backwarded = backward(backward_arguments);
    EXPECT_TRUE(backwarded.ok()) << backwarded.message();
    EXPECT_THAT(dk, testing::Each(0.0F));
    EXPECT_THAT(dv, testing::Each(0.0F));
    EXPECT_EQ(none, 7.0F);
  }
}

TEST(ExtremeSizes, EntriesThatAreUsedMoreOftenThanSixtyFourBitsCount) {
  constexpr std::int64_t kBatch = 65536;
  std::vector<float> q(kBatch);
  std::vector<float> o(kBatch, 7.0F);
  std::vector<std::int32_t> used(kBatch, 4096);
  std::vector<std::int32_t> entries(kBatch, 0);
  const float one = 1.0F;
  ForwardArguments arguments;
  arguments.q = tensor(static_cast<const float*>(q.data()), {kBatch, 1, 1, 1});
  arguments.o = tensor(o.data(), {kBatch, 1, 1, 1});
  arguments.k = tensor(&one, {1, std::int64_t{1} << 48, 1, 1});
  arguments.k.strides = {0, 0, 0, 1};
  arguments.v = arguments.k;
  arguments.sequences.seqused_k = tensor(static_cast<const std::int32_t*>(used.data()), {kBatch});
  arguments.sequences.cache_batch_idx = tensor(static_cast<const std::int32_t*>(entries.data()), {kBatch});
  const Status status = forward(arguments);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(),
            "k has shape [1, 281474976710656, 1, 1] and the batch is 65536: its elements through the batch must be "
            "fewer than 2^59");
  EXPECT_THAT(o, testing::Each(7.0F));
}

TEST(ExtremeSizes, WorkspacesThatSixtyFourBitsDoNotCountAreAnError) {
  constexpr std::int64_t kHeads = (std::int64_t{1} << 47) + 1;  // odd: a block of the mask is one of 2^47 rows
  const float one = 1.0F;
  float none = 7.0F;
  const std::uint8_t visible = 1;
  ForwardArguments arguments;
  arguments.q = tensor(&one, {1, 1, kHeads, 1});
  arguments.q.strides = {0, 0, 0, 1};
  arguments.k = arguments.v = tensor(&one, {1, 64, 1, 1});
  arguments.k.strides = arguments.v.strides = {0, 0, 0, 1};
  arguments.o = tensor(&none, {1, 1, kHeads, 1});
  arguments.modifiers.block_mask = tensor(&visible, {1, 1, 1, 1});
  arguments.modifiers.block_size = 64;
  const Result<Plan> plan = make_plan(arguments, {}, {.threads = 4096});
  EXPECT_EQ(plan.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(plan.status().message(), "a product of this call's extents does not fit in 64 bits");
}

TEST(ExtremeSizes, TensorsWithoutElementsMayHaveStridesOfZero) {
  std::vector<float> q(24, 1.0F);
  std::vector<float> o(24, 7.0F);
  const float* from = q.data();
  ForwardArguments arguments;
  arguments.q = tensor(from, {1, 3, 2, 4});
  arguments.k = tensor(from, {1, 0, 2, 4});
  arguments.k.strides = {};
  arguments.k.data = nullptr;
  arguments.v = arguments.k;
  arguments.o = tensor(o.data(), {1, 3, 2, 4});
  const Status status = forward(arguments);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(o, testing::Each(0.0F));
}

TEST(ExtremeSizes, ManyShortCallsHoldNoMoreMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps what was freed";
#endif
  constexpr std::int64_t kElements = 64 * 4 * 8;
  std::vector<float> x(kElements, 0.5F);
  std::vector<float> o(kElements);
  const float* from = x.data();
  ForwardArguments arguments;
  arguments.q = arguments.k = arguments.v = tensor(from, {1, 64, 4, 8});
  arguments.o = tensor(o.data(), {1, 64, 4, 8});
  Execution execution;
  const auto calls = [&](int count) {
    for (int i = 0; i < count; ++i) {
      execution.threads = 2 + i % 3;
      ASSERT_TRUE(forward(arguments, {}, execution).ok());
    }
  };
  calls(1000);
  const std::int64_t before = resident_pages();
  calls(20000);
  constexpr std::int64_t kMostBytes = 8 << 20;  // an arena a call would be 80 MiB
  EXPECT_LT((resident_pages() - before) * sysconf(_SC_PAGESIZE), kMostBytes);
}

}  // namespace
}  // namespace strobe::test
