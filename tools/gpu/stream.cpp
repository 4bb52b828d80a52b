// SPDX-License-Identifier: Apache-2.0
#include "gpu/stream.h"

namespace strobe::gpu {
namespace {

using runtime::ContextScope;
using runtime::CUevent;
using runtime::Driver;

/// A pair of events; made in the current context.
class Timer {
 public:
  explicit Timer(const Driver& driver) : driver_(&driver) {
    status_ = driver.check(driver.EventCreate(&start_, runtime::CU_EVENT_DEFAULT), "making an event");
    if (status_.ok()) status_ = driver.check(driver.EventCreate(&end_, runtime::CU_EVENT_DEFAULT), "making an event");
  }
  Timer(Timer&& other) noexcept
      : driver_(other.driver_),
        start_(std::exchange(other.start_, nullptr)),
        end_(std::exchange(other.end_, nullptr)),
        status_(std::move(other.status_)) {}
  Timer& operator=(Timer&&) = delete;
  ~Timer() {
    for (const CUevent event : {start_, end_}) {
      if (event != nullptr) driver_->EventDestroy(event);
    }
  }

  Status record_around(runtime::CUstream stream, const std::function<Status()>& enqueue) {
    if (!status_.ok()) return status_;
    Status status = driver_->check(driver_->EventRecord(start_, stream), "recording an event");
    if (status.ok()) status = enqueue();
    if (!status.ok()) return status;
    return driver_->check(driver_->EventRecord(end_, stream), "recording an event");
  }

  Result<double> milliseconds() const {
    float elapsed = 0.0F;
    Status status = driver_->check(driver_->EventElapsedTime(&elapsed, start_, end_), "reading events");
    if (!status.ok()) return status;
    return static_cast<double>(elapsed);
  }

 private:
  const Driver* driver_;
  CUevent start_ = nullptr;
  CUevent end_ = nullptr;
  Status status_;
};

}  // namespace

Result<Stream> Stream::create(const runtime::CudaDevice& device) {
  const ContextScope context(device);
  if (!context.status().ok()) return context.status();
  runtime::CUstream stream = nullptr;
  const Driver& driver = *device.driver;
  Status status = driver.check(driver.StreamCreate(&stream, runtime::CU_STREAM_NON_BLOCKING), "making a stream");
  if (!status.ok()) return status;
  return Stream(device, stream);
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  const ContextScope context(device_);
  device_.driver->StreamDestroy(stream_);
}

Status Stream::synchronize() const {
  const ContextScope context(device_);
  return device_.driver->check(device_.driver->StreamSynchronize(stream_), "waiting for a stream");
}

Result<std::vector<double>> Stream::time(int count, const std::function<Status()>& enqueue) const {
  const ContextScope context(device_);
  if (!context.status().ok()) return context.status();
  std::vector<Timer> timers;
  for (int i = 0; i < count; ++i) timers.emplace_back(*device_.driver);
  for (Timer& timer : timers) {
    if (Status status = timer.record_around(stream_, enqueue); !status.ok()) return status;
  }
  if (Status status = synchronize(); !status.ok()) return status;
  std::vector<double> times;
  for (const Timer& timer : timers) {
    const Result<double> milliseconds = timer.milliseconds();
    if (!milliseconds.ok()) return milliseconds.status();
    times.push_back(*milliseconds);
  }
  return times;
}

}  // namespace strobe::gpu
