// SPDX-License-Identifier: Apache-2.0
#include "runtime/workspace_pool.h"

#include <thread>

namespace strobe::runtime {
namespace {

/// While it lives, this thread may allocate and free although some stream is being captured.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.ThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver_.ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

WorkspacePool::~WorkspacePool() {
  const ContextScope context(device_);
  const Driver& driver = *device_.driver;
  const RelaxedCapture relaxed(driver);
  for (const Block& block : blocks_) {  // the driver lets enqueued work finish before it frees what the work uses
    if (block.last_use != nullptr) driver.EventDestroy(block.last_use);
    if (block.address != 0) driver.MemFree(block.address);
  }
  for (const CapturedBlock& block : captured_) driver.MemFree(block.address);
}

Status WorkspacePool::allocate(CUdeviceptr& address) const {
  const RelaxedCapture relaxed(*device_.driver);
  return device_.driver->check(device_.driver->MemAlloc(&address, bytes_), "allocating a workspace");
}

/// Best first: the block this stream used last, one that no stream has used, any other.
WorkspacePool::Block* WorkspacePool::try_lease(std::uint64_t user) {
  const auto take = [this](auto suits) -> Block* {
    for (Block& block : blocks_) {
      if (suits(block.last_user.load(std::memory_order_relaxed)) &&
          !block.leased.exchange(true, std::memory_order_acquire)) {
        return &block;
      }
    }
    return nullptr;
  };
  if (Block* block = take([user](std::uint64_t last) { return last == user; })) return block;
  if (Block* block = take([](std::uint64_t last) { return last == kNobody; })) return block;
  return take([](std::uint64_t) { return true; });
}

/// Makes a block that was never lent, or lets the stream wait for the one that used it last.
Status WorkspacePool::prepare(Block& block, CUstream stream, std::uint64_t user) const {
  const Driver& driver = *device_.driver;
  if (block.last_use == nullptr) {
    Status status =
        driver.check(driver.EventCreate(&block.last_use, CU_EVENT_DISABLE_TIMING), "creating an event for a workspace");
    if (!status.ok()) return status;
  }
  if (block.address == 0) return allocate(block.address);
  const std::uint64_t last = block.last_user.load(std::memory_order_relaxed);
  if (last == kNobody || last == user) return {};
  return driver.check(driver.StreamWaitEvent(stream, block.last_use, 0), "waiting for a workspace's last user");
}

/// Leases last for a few launches, so that waiting for one is a matter of microseconds.
WorkspacePool::Block& WorkspacePool::lease_block(std::uint64_t user) {
  Block* block = try_lease(user);
  for (; block == nullptr; block = try_lease(user)) std::this_thread::yield();
  return *block;
}

Result<WorkspacePool::Lease> WorkspacePool::acquire(CUstream stream) {
  const Driver& driver = *device_.driver;
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  std::uint64_t capture = 0;
  if (Status status =
          driver.check(driver.StreamGetCaptureInfo(stream, &capturing, &capture, nullptr, nullptr, nullptr, nullptr),
                       "asking whether a stream is being captured");
      !status.ok()) {
    return status;
  }
  if (capturing == CU_STREAM_CAPTURE_STATUS_ACTIVE) return acquire_captured(capture, stream);
  unsigned long long id = 0;  // asked only now: the driver ends a capture whose stream is asked for its id
  if (Status status = driver.check(driver.StreamGetId(stream, &id), "asking a stream's id"); !status.ok()) {
    return status;
  }
  const std::uint64_t user = id + 1;  // the default stream may have the id 0
  Block& block = lease_block(user);
  if (Status status = prepare(block, stream, user); !status.ok()) {
    block.leased.store(false, std::memory_order_release);
    return status;
  }
  return Lease(block.address, &driver, &block, stream, user);
}

Result<WorkspacePool::Lease> WorkspacePool::acquire_captured(std::uint64_t capture, CUstream stream) {
  const std::lock_guard lock(captured_mutex_);
  for (const CapturedBlock& block : captured_) {
    if (block.capture == capture && block.stream == stream) return Lease(block.address, nullptr, nullptr, nullptr, 0);
  }
  CapturedBlock block{.capture = capture, .stream = stream, .address = 0};
  if (Status status = allocate(block.address); !status.ok()) return status;
  captured_.push_back(block);
  return Lease(block.address, nullptr, nullptr, nullptr, 0);
}

Status WorkspacePool::Lease::finish() {
  Block* block = std::exchange(block_, nullptr);
  if (block == nullptr) return {};
  Status status = driver_->check(driver_->EventRecord(block->last_use, stream_), "marking a workspace's last use");
  block->last_user.store(user_, std::memory_order_relaxed);
  block->leased.store(false, std::memory_order_release);
  return status;
}

}  // namespace strobe::runtime
