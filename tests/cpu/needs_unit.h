// SPDX-License-Identifier: Apache-2.0
// Skips tests where nothing multiplies bfloat16.
#pragma once

#include <gtest/gtest.h>

#include "cpu/bfloat16/kernels.h"

namespace strobe::test {

class NeedsUnit : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cpu::bf16::unit() == cpu::bf16::Unit::none) GTEST_SKIP() << "this processor or build has no AVX512-BF16";
  }
};

}  // namespace strobe::test
