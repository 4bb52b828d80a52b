// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch: kernels that start while the one before them ends, from sm_90 on. Earlier GPUs start
// them after it, and these functions do nothing there. cuda::ptx lacks the instructions. One a function.
#pragma once

namespace strobe::ptx {

/// Waits until the kernels before this one have ended and what they wrote can be read.
__device__ __forceinline__ void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// The next kernel may start as soon as every CTA of this one has said so or ended.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

}  // namespace strobe::ptx
