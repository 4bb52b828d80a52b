// SPDX-License-Identifier: Apache-2.0
// strobe::merge on a GPU against float64.
#include "merge/merge_case.h"

#include "device_copies.h"
#include "gpu_test.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

class GpuMerge : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(, GpuMerge, kFamilies, family_name);

TEST_P(GpuMerge, MatchesFloat64) {
  for_each_merge_case(8, [&](MergeCase& one) {
    DeviceCopies copies(device());
    const MergeArguments arguments = one.arguments([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    const auto run = [&] {
      const Status status = merge(arguments, tested_execution(stream().get()));
      ASSERT_TRUE(status.ok()) << status.message();
      copies.download({&one.o, &one.lse});
    };
    run();
    one.expect_merged();
    const auto first = one.o.element_bytes();
    run();
    EXPECT_TRUE(one.o.element_bytes() == first) << "another run gave other bits";
  });
}

}  // namespace
}  // namespace strobe::test
