// SPDX-License-Identifier: Apache-2.0
// What the compiler may use in the bfloat16 kernels: the instruction set of the Highway target that is being compiled
// and, where that is AVX-512 on x86, AVX512-BF16 on top. AMX is written as instructions, which need no permission here.
#include "hwy/highway.h"

#undef STROBE_BEFORE_BFLOAT16_NAMESPACE
#undef STROBE_AFTER_BFLOAT16_NAMESPACE
#undef STROBE_HAS_BFLOAT16

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
#define STROBE_HAS_BFLOAT16 1
#ifdef HWY_TARGET_STR
#define STROBE_BEFORE_BFLOAT16_NAMESPACE()          \
  HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16") \
  static_assert(true, "for a semicolon")
#else
#define STROBE_BEFORE_BFLOAT16_NAMESPACE() \
  HWY_PUSH_ATTRIBUTES("avx512bf16")        \
  static_assert(true, "for a semicolon")
#endif
#define STROBE_AFTER_BFLOAT16_NAMESPACE() \
  HWY_POP_ATTRIBUTES                      \
  static_assert(true, "for a semicolon")
#else
#define STROBE_HAS_BFLOAT16 0
#define STROBE_BEFORE_BFLOAT16_NAMESPACE() HWY_BEFORE_NAMESPACE()
#define STROBE_AFTER_BFLOAT16_NAMESPACE() HWY_AFTER_NAMESPACE()
#endif
