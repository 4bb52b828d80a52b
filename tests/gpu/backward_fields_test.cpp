// SPDX-License-Identifier: Apache-2.0
// Fields of an sm90 backward's Config that registers or speed decide, set otherwise than the planner does: gradients
// are right, and those whose order of additions the field does not touch have the same bits. Kernels are debug
// variants.
#include <cstdint>

#include "device_case.h"
#include "gpu/call/override.h"
#include "gpu/plan/device.h"
#include "gpu_test.h"
#include "sm90/backward_plan.h"

namespace strobe::test {
namespace {

using Config = sm90::backward::Config;

class GpuBackwardFields : public GpuTest {
 protected:
  /// Gradients where `field` has that value; the planner's is the other one in one of two calls.
  DeviceCase::Bits bits(const AttentionCase& attention, bool Config::* field, bool value) {
    SCOPED_TRACE(describe(attention) + (value ? ", with" : ", without"));
    const gpu::Override<Config> override([=](Config& config) {
      config.debug = true;
      config.*field = value;
    });
    DeviceCase one(attention, device());
    one.poison(one.tensors.backward_outputs());
    one.forward(stream());
    one.backward(stream());
    one.expect_backward_right();
    return one.bits(one.tensors.backward_outputs());
  }
};

// L2 so small that every head is a section of its own, whose order changes when the next begins with its shortest
// items.
TEST_F(GpuBackwardFields, OfTheOrderOfItems) {
  const gpu::Override<gpu::DeviceShape> small([](gpu::DeviceShape& shape) { shape.l2_bytes = 1; });
  for (const std::int64_t seqlen : {300, 1500}) {
    AttentionCase attention = plain_case(seqlen, 64, CausalMask::bottom_right);
    attention.heads_q = attention.heads_kv = 3;
    attention.options.deterministic = true;
    for (const bool alternates : {false, true}) {
      bits(attention, &Config::alternates, alternates);
      const gpu::Override<Config> override([=](Config& config) {
        ASSERT_TRUE(config.ordered);
        config.alternates = alternates;
      });
      DeviceCase(attention, device()).expect_same_backward(stream(), 20);
    }
  }
}

TEST_F(GpuBackwardFields, OfTheBiasGradient) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const bool aligned : {false, true}) {
      for (const float softcap : {0.0F, 20.0F}) {
        AttentionCase attention = plain_case(300, head_dim, CausalMask::bottom_right);
        attention.options.softcap = softcap;
        attention.bias = BiasCase{.sharing = {.per_head = true}, .aligned = aligned};
        EXPECT_TRUE(bits(attention, &Config::dp_ahead, false) == bits(attention, &Config::dp_ahead, true));
      }
    }
  }
}

}  // namespace
}  // namespace strobe::test
