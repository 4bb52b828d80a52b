// SPDX-License-Identifier: Apache-2.0
// A driver for tests without a GPU: it writes down what it is asked and can be told to fail.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace strobe::test {

inline constexpr runtime::CUresult kFakeError = 1;

/// Plain functions reach the one that lives: create at most one at a time.
class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  /// A device of this driver; its primary context is current in the calling thread.
  const runtime::CudaDevice& device() const { return device_; }
  const runtime::Driver& driver() const { return driver_; }

  /// The calls since the last time, in order, as "StreamWaitEvent 2 1".
  std::vector<std::string> take_calls();

  /// The CUDA version that it is for, as 12040.
  void set_version(int version) { driver_.version = version; }

  /// Makes the next calls of this name give that result.
  void fail(const std::string& name, runtime::CUresult result);

  /// While not 0, every stream is being captured into the graph of that id.
  std::uint64_t capture_id = 0;

  int blocks_in_use() const { return allocated_ - freed_; }

 private:
  friend struct FakeCalls;
  runtime::CUresult note(const std::string& name, const std::string& rest);

  std::mutex mutex_;
  std::vector<std::string> calls_;
  std::map<std::string, runtime::CUresult> failures_;
  runtime::CUstreamCaptureMode mode_ = runtime::CU_STREAM_CAPTURE_MODE_GLOBAL;
  int allocated_ = 0;
  int freed_ = 0;
  int events_ = 0;
  runtime::Driver driver_;
  runtime::CudaDevice device_;
};

/// The stream with that number.
runtime::CUstream fake_stream(std::uintptr_t number);

/// What the calling thread's current context is.
void set_fake_context(runtime::CUcontext context, runtime::CUdevice device);
runtime::CUcontext fake_context(std::uintptr_t number);

}  // namespace strobe::test
