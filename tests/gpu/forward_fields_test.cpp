// SPDX-License-Identifier: Apache-2.0
// Fields of a forward's Config that registers or speed decide, set otherwise than the planner does: the bits are the
// same, or other ones within their bounds. Kernels are debug variants, and outputs poisoned before each call.
#include <string>
#include <vector>

#include "attention/cache_copy.h"
#include "device_cache.h"
#include "device_case.h"
#include "eight_bit/eight_bit_case.h"
#include "eight_bit/stored_case.h"
#include "gpu/call/override.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

using Sm90 = sm90::forward::Config;
using Sm80 = sm80::forward::Config;

class GpuForwardFields : public FamilyTest {
 protected:
  /// What a change of the variant leaves in the outputs.
  template <class Config, class Change>
  DeviceCase::Bits bits(const AttentionCase& attention, const Change& change) {
    const gpu::Override<Config> override([&](Config& config) {
      config.debug = true;
      change(config);
    });
    DeviceCase one(attention, device());
    one.poison(one.tensors.forward_outputs());
    one.forward(stream());
    return one.bits(one.tensors.forward_outputs());
  }

  template <class Config, class Change>
  void expect_the_same(const AttentionCase& attention, const Change& change) {
    SCOPED_TRACE(describe(attention));
    bool changed = false;
    const auto as_planned = bits<Config>(attention, [](Config&) {});
    const auto otherwise = bits<Config>(attention, [&](Config& config) {
      const Config planned = config;
      change(config);
      changed = !(config == planned);
    });
    EXPECT_TRUE(changed);
    EXPECT_TRUE(otherwise == as_planned);
  }

  /// Of a call on tensors in host memory, in the place of the planner's.
  template <class Config, class Change>
  void expect_matches(const ForwardArguments& arguments, const AttentionOptions& options, const Change& change) {
    const gpu::Override<Config> override([&](Config& config) {
      config.debug = true;
      change(config);
    });
    DeviceCache call(arguments, device());
    call.run(options, stream());
    if (!HasFailure()) call.expect_matches(arguments, options);
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuForwardFields, kFamilies, family_name);

/// Of the forward alone.
AttentionCase forward_case(std::int64_t seqlen, std::int64_t head_dim, CausalMask causal) {
  AttentionCase attention = plain_case(seqlen, head_dim, causal);
  attention.wants_lse = false;
  return attention;
}

TEST_P(GpuForwardFields, OfPlainCalls) {
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
    const AttentionCase attention = forward_case(700, 128, causal);
    if (GetParam() == Family::sm80) {
      expect_the_same<Sm80>(attention, [](Sm80& c) { c.copies_first = !c.copies_first; });
      expect_the_same<Sm80>(attention, [](Sm80& c) { c.keeps_work = !c.keeps_work; });
      continue;
    }
    expect_the_same<Sm90>(attention, [](Sm90& c) { c.looks_ahead = !c.looks_ahead; });
    expect_the_same<Sm90>(attention, [](Sm90& c) { c.late_values = !c.late_values; });
    expect_the_same<Sm90>(attention, [](Sm90& c) { c.masks_by_words = !c.masks_by_words; });
    AttentionCase dropout = attention;
    dropout.options.dropout = 0.2F;
    expect_the_same<Sm90>(dropout, [](Sm90& c) { c.late_values = !c.late_values; });
  }
}

// Softcap before the softmax has another rounding, and NaN other neighbours.
TEST_P(GpuForwardFields, OfSoftcap) {
  if (GetParam() == Family::sm80) GTEST_SKIP() << "it has no such field";
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const float scale : {0.1F, 4.0F}) {  // scores near 0, and on both sides of the cap
      AttentionCase attention = forward_case(700, head_dim, CausalMask::bottom_right);
      attention.options.softcap = 5.0F;
      attention.options.scale = scale;
      for (const bool caps : {false, true}) {
        SCOPED_TRACE(describe(attention) + (caps ? ", in the softmax" : ", before the softmax"));
        const gpu::Override<Sm90> override([caps](Sm90& config) {
          config.debug = true;
          ASSERT_TRUE(config.caps_in_softmax);
          config.caps_in_softmax = caps;
        });
        DeviceCase one(attention, device());
        one.poison(one.tensors.forward_outputs());
        one.forward(stream());
        one.expect_forward_right();
      }
    }
  }
}

// Tiles enough for a CTA to join the segments of its own.
TEST_P(GpuForwardFields, OfSegments) {
  if (GetParam() == Family::sm80) GTEST_SKIP() << "it has no such field";
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionCase attention = forward_case(5000, head_dim, CausalMask::none);
    attention.options.row_invariant = true;
    expect_the_same<Sm90>(attention, [](Sm90& c) { c.keeps_in_smem = false; });
  }
}

TEST_P(GpuForwardFields, OfPages) {
  if (GetParam() == Family::sm90) GTEST_SKIP() << "cache_test.cpp has pages that are and are not looked up ahead";
  AttentionCase attention = forward_case(0, 128, CausalMask::bottom_right);
  attention.q.rows = 3;
  attention.k.rows = 900;
  const CaseTensors tensors(attention);
  Random random(1);
  const CacheCopy pages(tensors.forward_arguments(), CacheKind::pages, random, 16);
  for (const bool ahead : {false, true}) {
    for (const bool first : {false, true}) {
      expect_matches<Sm80>(pages.arguments(), attention.options, [=](Sm80& c) {
        c.pages_ahead = c.pages_ahead && ahead;
        c.copies_first = first;
      });
    }
  }
}

TEST_P(GpuForwardFields, OfStoredKeys) {
  StoredCase c = random_stored_case(1);
  c.qv = false;
  c.dtype = DType::bfloat16;
  c.head_dim = c.head_dim_v = 128;
  c.batch = 2;
  c.heads_kv = 2;
  c.heads_q = 2;  // 60 rows of a head: one consumer warpgroup
  c.seqlen_q = 60;
  c.seqlen_k = 900;
  c.packed = c.used = c.bias = false;
  c.options = {};
  c.fill(1);
  const ForwardArguments arguments = c.with_outputs(c.stored());
  if (GetParam() == Family::sm90) {
    for (const int warpgroups : {1, 2}) {
      expect_matches<Sm90>(arguments, c.options, [=](Sm90& config) {
        ASSERT_EQ(config.consumer_warpgroups, 1);
        config.producer_warpgroups = warpgroups;
        config.producer_registers = warpgroups == 1 ? 88 : 120;
        config.consumer_registers = warpgroups == 1 ? 208 : 240;
      });
    }
    return;
  }
  c.seqlen_q = 100;  // of few rows they are not converted
  c.fill(1);
  const ForwardArguments many = c.with_outputs(c.stored());
  for (const int chunks : {1, 2, 4}) {
    expect_matches<Sm80>(many, c.options, [=](Sm80& config) { config.chunks_at_once = chunks; });
  }
}

TEST_P(GpuForwardFields, OfIntegers) {
  if (GetParam() == Family::sm80) GTEST_SKIP() << "it has no 8-bit operands";
  EightBitCase c;
  c.seqlen_q = 300;
  c.seqlen_k = 900;
  c.head_dim = c.head_dim_v = 128;
  c.quantize.element = DType::int8;
  c.options.causal = CausalMask::bottom_right;
  c.fill(1);
  for (const int ahead : {0, 1, 2}) {
    for (const bool by_words : {false, true}) {
      ASSERT_TRUE(c.prepare().ok());
      const gpu::Override<Sm90> override([=](Sm90& config) {
        config.debug = true;
        config.exponentials_ahead = ahead;
        config.masks_by_words = by_words;
      });
      DeviceCache call(c.arguments(), device());
      call.run(c.options, stream());
      if (HasFailure()) return;
      c.expect_within_bound(reference::arithmetic_of("sm90", DType::uint8));
    }
  }
}

}  // namespace
}  // namespace strobe::test
