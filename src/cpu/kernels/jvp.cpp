// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/jvp.cpp"  // compiled once per instruction set
#include "hwy/foreach_target.h"                   // must come before highway.h

#include "cpu/kernels/jvp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

void run_jvp_block(const JvpTask& task, std::byte* scratch) { JvpBlock(task, scratch).run(); }

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/kernels/kernels.h"

namespace strobe::cpu {

HWY_EXPORT(run_jvp_block);

void jvp_block(const JvpTask& task, std::byte* scratch) { HWY_DYNAMIC_DISPATCH(run_jvp_block)(task, scratch); }

}  // namespace strobe::cpu
#endif
