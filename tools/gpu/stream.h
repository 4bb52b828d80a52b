// SPDX-License-Identifier: Apache-2.0
// A CUDA stream, owned, and the time that work on it takes.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "strobe/status.h"

namespace strobe::gpu {

/// A stream of the device's primary context that does not wait for the default stream.
class Stream {
 public:
  static Result<Stream> create(const runtime::CudaDevice& device);

  Stream(Stream&& other) noexcept : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  runtime::CUstream get() const { return stream_; }

  /// Waits on the host for all work enqueued so far; device_error with the driver's words where it failed.
  Status synchronize() const;

  /// Milliseconds between events around each of `count` calls of `enqueue`, all enqueued before the first is waited
  /// for, so that the host's time hides behind the device's.
  Result<std::vector<double>> time(int count, const std::function<Status()>& enqueue) const;

 private:
  Stream(const runtime::CudaDevice& device, runtime::CUstream stream) : device_(device), stream_(stream) {}

  const runtime::CudaDevice& device_;
  runtime::CUstream stream_;
};

}  // namespace strobe::gpu
