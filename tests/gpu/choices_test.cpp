// SPDX-License-Identifier: Apache-2.0
// Plans with other choices than the rules', and those for devices with other numbers of multiprocessors, run on the GPU
// that is there: right, whatever is asked for. All take kernels that the pack has.
#include <array>
#include <string>
#include <vector>

#include "device_case.h"
#include "gpu/call/override.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

using gpu::Choice;
using gpu::PlannedChoice;

AttentionCase grouped_case(std::int64_t seqlen, bool deterministic) {
  AttentionCase attention = plain_case(seqlen, 128, CausalMask::bottom_right);
  attention.heads_q = 8;
  attention.options.deterministic = deterministic;
  return attention;
}

/// One query of each of 8 heads against keys that many CTAs can share.
AttentionCase decode_case() {
  AttentionCase attention = plain_case(2048, 128, CausalMask::bottom_right);
  attention.heads_q = 8;
  attention.q.rows = 1;
  return attention;
}

class GpuChoices : public FamilyTest {
 protected:
  void expect_right(const AttentionCase& attention, const std::string& what) {
    SCOPED_TRACE(describe(attention) + ", " + what);
    DeviceCase one(attention, device());
    one.poison(one.tensors.forward_outputs());
    one.forward(stream());
    one.expect_forward_right();
    if (attention.q.rows == 1) return;
    one.poison(one.tensors.backward_outputs());
    one.backward(stream());
    one.expect_backward_right();
  }

  void expect_right(const AttentionCase& attention, const Choice& choice) {
    const gpu::Override<PlannedChoice> override([&](PlannedChoice& planned) { planned.choice = choice; });
    expect_right(attention, text_of(choice));
  }
};

TEST_P(GpuChoices, OfOrdersAreRight) {
  constexpr int kHuge = 1 << 30;
  for (const bool deterministic : {false, true}) {
    for (const Choice& choice :
         {Choice{.section_heads = 1}, Choice{.section_heads = 3, .part_heads = 2},
          Choice{.section_heads = kHuge, .part_heads = 1}, Choice{.part_heads = 3}, Choice{.part_heads = kHuge}}) {
      expect_right(grouped_case(260, deterministic), choice);
    }
  }
}

TEST_P(GpuChoices, OfTilesAreRight) {
  for (const Choice& choice :
       {Choice{.block_m = 192, .block_n = 80, .ctas = 1}, Choice{.block_m = 128, .block_n = 128, .ctas = 1},
        Choice{.block_m = 128, .block_n = 64, .ctas = 2}, Choice{.block_m = 7, .block_n = 7, .ctas = 7}}) {
    expect_right(grouped_case(260, false), choice);
  }
}

TEST_P(GpuChoices, OfSplitsAreRight) {
  for (const int split_ctas : {Choice::kWhole, 2, 5, 64, 1 << 30}) {
    expect_right(decode_case(), Choice{.split_ctas = split_ctas});
  }
}

TEST_P(GpuChoices, ForOtherDevicesAreRight) {
  for (const int multiprocessors : {1, 78, 114}) {
    const gpu::Override<gpu::DeviceShape> override([=](gpu::DeviceShape& shape) {
      shape.multiprocessors = multiprocessors;
      shape.l2_bytes = std::size_t{60} << 20U;
    });
    const std::string what = std::to_string(multiprocessors) + " multiprocessors";
    for (const bool deterministic : {false, true}) expect_right(grouped_case(260, deterministic), what);
    expect_right(decode_case(), what);
  }
}

/// Short sequences leave a GPU idle and have tiles for that, on one multiprocessor those of long ones.
TEST_P(GpuChoices, OfWhatFillsADeviceAreRight) {
  const gpu::Override<gpu::DeviceShape> override([](gpu::DeviceShape& shape) { shape.multiprocessors = 1; });
  for (const std::int64_t head_dim : {64, 128}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      for (const bool deterministic : {false, true}) {
        AttentionCase attention = plain_case(700, head_dim, causal);
        attention.options.deterministic = deterministic;
        expect_right(attention, "one multiprocessor");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, GpuChoices, kFamilies, family_name);

}  // namespace
}  // namespace strobe::test
