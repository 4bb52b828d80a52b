// SPDX-License-Identifier: Apache-2.0
// The CUDA devices of this machine.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/driver.h"

namespace strobe::runtime {

/// One device and its primary context, which CUDA's runtime library and PyTorch use too; retained for the process.
struct CudaDevice {
  const Driver* driver = nullptr;
  int index = 0;
  CUdevice handle = 0;
  CUcontext context = nullptr;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::size_t l2_bytes = 0;
  int max_shared_bytes = 0;  // dynamic shared memory that one block can opt in to
  int clock_khz = 0;         // the highest of the multiprocessors
  int memory_clock_khz = 0;  // 0 where the driver does not say
  int memory_bus_bits = 0;   // likewise
};

/// How many devices the driver shows; 0 where it has none. Fails where there is no driver.
Result<int> cuda_device_count();

/// The device, opened by the first call for its index; every later call gives the same answer. invalid_argument when
/// there is none of that index.
Result<const CudaDevice*> cuda_device(int index);

/// While it lives, the calling thread's current context is one of the device's: the caller's own if it already is, the
/// primary context otherwise. The stream given to a launch must belong to that context.
class ContextScope {
 public:
  explicit ContextScope(const CudaDevice& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  const Status& status() const { return status_; }

  /// The context that is current now; where status() is ok.
  CUcontext current() const { return current_; }

 private:
  const CudaDevice& device_;
  Status status_;
  CUcontext current_ = nullptr;
  bool pushed_ = false;
};

}  // namespace strobe::runtime
