// SPDX-License-Identifier: Apache-2.0
// Kernels that start while the one before them ends, from sm_90 on; earlier GPUs start them after it.
#pragma once

namespace strobe {

/// Until the kernel before has ended, and what it wrote is seen.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// The kernel after this one may start.
__device__ __forceinline__ void launch_next_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

}  // namespace strobe
