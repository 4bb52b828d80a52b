// SPDX-License-Identifier: Apache-2.0
// Every variant that the ablation measures, against the reference.
#include "sm90/ablation.h"

#include "attention/matches_reference.h"
#include "device_copies.h"
#include "gpu_test.h"
#include "reference/bound/arithmetic.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

AttentionCase ablation_case(std::int64_t head_dim, CausalMask causal) {
  AttentionCase attention;
  attention.dtype = DType::float16;
  attention.batch = 2;
  attention.heads_q = 4;
  attention.heads_kv = 2;
  attention.head_dim = attention.head_dim_v = head_dim;
  attention.q.rows = 700;
  attention.k.rows = 900;
  attention.options.causal = causal;
  attention.placement.alignment = 8;
  return attention;
}

class GpuAblation : public GpuTest {
 protected:
  void expect_matches(const AttentionCase& attention, const gpu::Override<sm90::forward::Config>::Change& change) {
    CaseTensors tensors(attention);
    DeviceCopies copies(device());
    const ForwardArguments arguments =
        tensors.forward_arguments([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    const gpu::Override<sm90::forward::Config> override(change);
    const Result<Plan> plan = make_plan(arguments, attention.options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Status status = plan->run(arguments, {.stream = stream().get()});
    ASSERT_TRUE(status.ok()) << status.message();
    copies.download(tensors.forward_outputs());
    expect_forward_matches(tensors, attention, reference::arithmetic_of("sm90", attention.dtype));
  }
};

TEST_F(GpuAblation, EveryVariantMatchesTheReference) {
  for (const sm90::AblationVariant& variant : sm90::ablation_variants()) {
    for (const std::int64_t head_dim : {64, 128}) {
      for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
        SCOPED_TRACE(variant.name);
        const AttentionCase attention = ablation_case(head_dim, causal);
        SCOPED_TRACE(describe(attention));
        expect_matches(attention, variant.change);
      }
    }
  }
}

}  // namespace
}  // namespace strobe::test
