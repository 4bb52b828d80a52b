// SPDX-License-Identifier: Apache-2.0
// Calls on tensors that lie by themselves: no kernel touches an address outside of them, whatever of a tile lies
// outside.
#include <array>
#include <string>

#include "attention/cache_copy.h"
#include "device_cache.h"
#include "device_case.h"
#include "gpu_test.h"
#include "isolated_memory.h"

namespace strobe::test {
namespace {

using IsolatedHeadDims = std::array<std::int64_t, 2>;
using IsolatedParameter = std::tuple<Family, IsolatedHeadDims>;

class GpuIsolatedMemory : public GpuTest, public testing::WithParamInterface<IsolatedParameter> {
 protected:
  void SetUp() override {
    tested_family() = std::get<Family>(GetParam());
    GpuTest::SetUp();
  }
  void TearDown() override { tested_family() = Family::sm90; }

  /// Of keys without left padding; returns what the plan says.
  std::string expect_pages_right(const AttentionCase& attention, std::int64_t page_size) {
    const CaseTensors tensors(attention);
    for (std::uint64_t seed = 1;; ++seed) {
      Random random(seed);
      const CacheCopy copy(tensors.forward_arguments(), CacheKind::pages, random, page_size);
      if (copy.arguments().sequences.leftpad_k.given()) continue;
      DeviceCache cache(copy.arguments(), device());
      cache.run(attention.options, stream());
      if (!HasFailure()) cache.expect_matches(copy.arguments(), attention.options);
      return cache.explained();
    }
  }

  /// Three sequences of a few blocks.
  static AttentionCase lengths_case() {
    AttentionCase attention = plain_case(92, 64, CausalMask::bottom_right);
    const auto [head_dim, head_dim_v] = std::get<IsolatedHeadDims>(GetParam());
    attention.batch = 3;
    attention.head_dim = head_dim;
    attention.head_dim_v = head_dim_v;
    return attention;
  }
  static AttentionCase used_lengths() {
    AttentionCase attention = lengths_case();
    attention.q.rows = 200;
    attention.k.rows = 300;
    attention.k.seqused = {271, 5, 138};
    return attention;
  }
  static AttentionCase packed() {
    AttentionCase attention = lengths_case();
    attention.q.rows = 275;
    attention.q.cu_seqlens = {0, 145, 145, 275};
    attention.k.rows = 300;
    attention.k.cu_seqlens = {0, 18, 100, 300};
    return attention;
  }
};

constexpr std::array kBothEnds = {IsolatedMemory::At::first, IsolatedMemory::At::last};

std::string name_of_isolated(const testing::TestParamInfo<IsolatedParameter>& info) {
  const auto& [family, columns] = info.param;
  return std::string(name_of(family)) + "_" + std::to_string(columns[0]) + "_" + std::to_string(columns[1]);
}

// Of these compiled sizes have panels that lie wholly outside of Q and K, of V, and of neither.
INSTANTIATE_TEST_SUITE_P(, GpuIsolatedMemory,
                         testing::Combine(testing::Values(Family::sm90, Family::sm80),
                                          testing::Values(IsolatedHeadDims{320, 256}, IsolatedHeadDims{320, 320},
                                                          IsolatedHeadDims{64, 512}, IsolatedHeadDims{448, 64},
                                                          IsolatedHeadDims{128, 128}, IsolatedHeadDims{72, 40})),
                         name_of_isolated);

TEST_P(GpuIsolatedMemory, BothPassesTouchNothingElse) {
  for (const IsolatedMemory::At at : kBothEnds) {
    for (const AttentionCase& attention : {used_lengths(), packed()}) {
      const IsolatedMemory isolated(device(), at);
      DeviceCase one(attention, device());
      one.expect_both_right(stream());
      if (HasFailure()) return;
    }
  }
}

TEST_P(GpuIsolatedMemory, PagesTouchNothingElse) {
  const AttentionCase attention = used_lengths();
  for (const IsolatedMemory::At at : kBothEnds) {
    for (const std::int64_t page_size : {16, 3}) {
      const IsolatedMemory isolated(device(), at);
      const std::string plan = expect_pages_right(attention, page_size);
      if (HasFailure()) FAIL() << plan;
      const bool by_tma = tested_family() == Family::sm90 && page_size == 16;
      EXPECT_EQ(plan.find("by TMA") != std::string::npos, by_tma) << plan;
    }
  }
}

}  // namespace
}  // namespace strobe::test
