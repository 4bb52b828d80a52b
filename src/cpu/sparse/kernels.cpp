// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/sparse/kernels.cpp"  // compiled once per instruction set
#include "hwy/foreach_target.h"                      // must come before highway.h

#include "cpu/sparse/decode-inl.h"
#include "cpu/sparse/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

void run_decode_row(const RowFormat& format, const RowBytes<const std::byte>& from, float* to) {
  decode(format, from, to);
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strobe::cpu {

HWY_EXPORT(run_decode_row);

void decode_row(const RowFormat& format, const RowBytes<const std::byte>& from, float* to) {
  HWY_DYNAMIC_DISPATCH(run_decode_row)(format, from, to);
}

}  // namespace strobe::cpu
#endif
