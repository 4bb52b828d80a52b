// SPDX-License-Identifier: Apache-2.0
// float32, which the sm80 kernels compute by three tf32 products: both passes against the float64 reference, within the
// bound of that arithmetic.
#include "device_case.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

class GpuFloat32 : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(, GpuFloat32, testing::Values(Family::sm80), family_name);

TEST_P(GpuFloat32, MatchesTheReference) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      AttentionCase attention = plain_case(300, head_dim, causal);
      attention.dtype = DType::float32;
      attention.heads_q = 4;
      attention.k.rows = 333;
      SCOPED_TRACE(describe(attention));
      DeviceCase(attention, device()).expect_both_right(stream());
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace strobe::test
