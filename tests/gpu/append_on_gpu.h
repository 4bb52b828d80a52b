// SPDX-License-Identifier: Apache-2.0
// Appends of cases on a GPU, for tests of both families.
#pragma once

#include "append/append_case.h"
#include "device_copies.h"
#include "gpu_test.h"

namespace strobe::test {

class GpuAppendTest : public FamilyTest {
 protected:
  /// The case on the GPU, in its own tensors.
  void run(AppendCase& one) {
    DeviceCopies copies(device());
    const AppendArguments arguments = one.arguments([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    const Status status = append(arguments, tested_execution(stream().get()));
    ASSERT_TRUE(status.ok()) << status.message();
    copies.download(one.outputs());
  }
};

}  // namespace strobe::test
