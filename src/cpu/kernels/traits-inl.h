// SPDX-License-Identifier: Apache-2.0
// The vector shape that this instruction set's kernels were compiled for.
#if defined(STROBE_CPU_TRAITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_TRAITS_INL_H_
#undef STROBE_CPU_TRAITS_INL_H_
#else
#define STROBE_CPU_TRAITS_INL_H_
#endif

#include <numeric>

#include "cpu/kernels/task.h"
#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

// Packed operands have whole register tiles of rows.
inline constexpr std::int64_t kRowMultiple = std::lcm(kTileRows, kWideRows);

inline KernelTraits kernel_traits() {
  return {.target = hwy::TargetName(HWY_TARGET),
          .lanes = kLanes,
          .panel = kPanel,
          .wide_panel = kWidePanel,
          .strip = kStrip,
          .row_multiple = kRowMultiple};
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_TRAITS_INL_H_
