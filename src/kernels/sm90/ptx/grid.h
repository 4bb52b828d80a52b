// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch: instructions that cuda::ptx lacks, under their PTX names.
#pragma once

namespace strobe::ptx {

/// Waits until the kernels before this one have ended and what they wrote can be read.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }

/// The next kernel may start as soon as every CTA of this one has said so or ended.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

}  // namespace strobe::ptx
