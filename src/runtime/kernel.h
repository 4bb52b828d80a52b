// SPDX-License-Identifier: Apache-2.0
// A kernel that is ready to launch on one device.
#pragma once

#include "runtime/device.h"
#include "runtime/kernel_store.h"
#include "runtime/launch.h"

namespace strobe::runtime {

/// What the driver says of a loaded kernel.
struct KernelResources {
  int registers = 0;      // per thread
  int local_bytes = 0;    // per thread; above 0 the compiler spilled or indexed registers at run time
  int static_shared = 0;  // bytes per block
  int max_threads = 0;    // per block
};

struct Kernel {
  CUkernel handle = nullptr;
  // The kernel's function in the context that was current when it was loaded: launched there, it saves the driver a
  // look-up of a third of a microsecond.
  CUfunction function = nullptr;
  CUcontext context = nullptr;
  KernelResources resources;

  /// What to launch in a context of the device: the function in its own, else the handle, which serves every context.
  CUfunction launched_in(CUcontext current) const {
    return current == context ? function : reinterpret_cast<CUfunction>(handle);
  }
};

/// Looks the variant up, loads it once per process and makes it ready on the device with room for
/// `dynamic_shared_bytes` per block. For plans: it may compile, allocate and wait, so that launches never do.
/// invalid_argument when the device has less shared memory than that.
Result<Kernel> load_kernel(const KernelStore& store, const Variant& variant, const CudaDevice& device,
                           unsigned dynamic_shared_bytes);

}  // namespace strobe::runtime
