// SPDX-License-Identifier: Apache-2.0
// Takes the place of src/cpu/bfloat16/chosen_unit.cpp: dot products beside AMX, too.
#include <gtest/gtest.h>

#include "cpu/bfloat16/kernels.h"
#include "cpu/kernels/kernels.h"

namespace strobe::cpu::bf16 {

Unit unit() { return has_kernels() && processor_unit() != Unit::none ? Unit::dot_products : Unit::none; }

}  // namespace strobe::cpu::bf16

namespace strobe::test {
namespace {

// The compiler's own question to the processor. AVX-512's vectors hold 16 float32.
TEST(DotProductUnit, IsUsedWhereTheProcessorHasIt) {
#if defined(__x86_64__)
  const bool has_it = __builtin_cpu_supports("avx512bf16") != 0 && cpu::kernel_traits().lanes == 16;
#else
  const bool has_it = false;
#endif
  EXPECT_EQ(cpu::bf16::unit() == cpu::bf16::Unit::dot_products, has_it);
}

}  // namespace
}  // namespace strobe::test
