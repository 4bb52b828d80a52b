// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/amx/kernels.cpp"  // compiled once per instruction set
#include "hwy/foreach_target.h"                   // must come before highway.h

#include "cpu/amx/backward-inl.h"
#include "cpu/amx/forward-inl.h"
#include "cpu/amx/hardware_unit-inl.h"
#include "hwy/highway.h"

STROBE_BEFORE_AMX_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

#if STROBE_HAS_AMX
bool has_amx_kernels() { return true; }
void run_amx_forward_block(const ForwardTask& task, std::byte* scratch) {
  AmxForwardBlock<HardwareUnit>(task, scratch).run();
}
void run_amx_backward_block(const BackwardTask& task, std::byte* scratch) {
  AmxBackwardBlock<HardwareUnit>(task, scratch).run();
}
void run_amx_write_query_gradient(const QueryGradientTask& task) { amx_write_query_gradient<HardwareUnit>(task); }
#else  // never called
bool has_amx_kernels() { return false; }
void run_amx_forward_block(const ForwardTask&, std::byte*) {}
void run_amx_backward_block(const BackwardTask&, std::byte*) {}
void run_amx_write_query_gradient(const QueryGradientTask&) {}
#endif

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_AMX_NAMESPACE();

#if HWY_ONCE
#include "cpu/amx/amx.h"
#include "cpu/amx/permission.h"

namespace strobe::cpu {

HWY_EXPORT(has_amx_kernels);
HWY_EXPORT(run_amx_forward_block);
HWY_EXPORT(run_amx_backward_block);
HWY_EXPORT(run_amx_write_query_gradient);

namespace amx {

bool available() {
  static const bool permitted = permission();
  return permitted && HWY_DYNAMIC_DISPATCH(has_amx_kernels)();
}

void forward_block(const ForwardTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_amx_forward_block)(task, scratch);
}

void backward_block(const BackwardTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_amx_backward_block)(task, scratch);
}

void write_query_gradient(const QueryGradientTask& task) { HWY_DYNAMIC_DISPATCH(run_amx_write_query_gradient)(task); }

}  // namespace amx
}  // namespace strobe::cpu
#endif
