// SPDX-License-Identifier: Apache-2.0
// Device memory that a plan owns for calls that bring no workspace of their own.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device.h"

namespace strobe::runtime {

/// A few blocks of one size, lent out in stream order: nobody waits on the host. A block is allocated when it is first
/// lent, so that a pool takes no memory where every call brings a workspace of its own; later uses allocate nothing.
/// Threads and streams may share a pool. Its plan must outlive the work enqueued with it, and the graphs captured with
/// it.
///
/// - Work on the stream that used a block last follows in order and takes it as it is.
/// - Another stream waits, on the device, for the event that the last user recorded.
/// - A stream under capture gets a block of its own, allocated then, since its graph may be replayed at any time; work
///   captured later from the same stream into the same graph shares it. A replay allocates nothing.
class WorkspacePool {
 public:
  /// `bytes` is the size of each block, above 0.
  WorkspacePool(const CudaDevice& device, std::size_t bytes) : device_(device), bytes_(bytes) {}
  ~WorkspacePool();
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;

  class Lease;

  /// A block for what the calling thread enqueues on `stream` while it holds the lease. Its content is undefined.
  /// out_of_memory when the device has no memory for a new one.
  Result<Lease> acquire(CUstream stream);

 private:
  // Two streams at once wait for nothing; a third waits for one of them.
  static constexpr std::size_t kBlocks = 2;

  // A stream as it is remembered: the driver's id of it plus one. Ids are never reused, as handles are.
  static constexpr std::uint64_t kNobody = 0;

  struct Block {
    std::atomic<bool> leased = false;  // while a thread enqueues work that uses the block
    std::atomic<std::uint64_t> last_user = kNobody;
    CUdeviceptr address = 0;  // 0: never lent
    CUevent last_use = nullptr;
  };

  struct CapturedBlock {
    std::uint64_t capture = 0;
    CUstream stream = nullptr;  // the handle will do, since a stream outlives its capture
    CUdeviceptr address = 0;
  };

  Status allocate(CUdeviceptr& address) const;
  Status prepare(Block& block, CUstream stream, std::uint64_t user) const;
  Block* try_lease(std::uint64_t user);
  Block& lease_block(std::uint64_t user);
  Result<Lease> acquire_captured(std::uint64_t capture, CUstream stream);

  const CudaDevice& device_;
  std::size_t bytes_;
  std::array<Block, kBlocks> blocks_;
  std::mutex captured_mutex_;  // taken while a graph is captured, never by a run
  std::vector<CapturedBlock> captured_;
};

class WorkspacePool::Lease {
 public:
  Lease(Lease&& other) noexcept : Lease(other.address_, std::exchange(other.block_, nullptr), other) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease() { static_cast<void>(finish()); }

  CUdeviceptr address() const { return address_; }

  /// Marks in the stream where the work ends and gives the block back; the destructor does it too, and drops the
  /// Status.
  Status finish();

 private:
  friend class WorkspacePool;
  Lease(CUdeviceptr address, const Driver* driver, Block* block, CUstream stream, std::uint64_t user)
      : address_(address), driver_(driver), block_(block), stream_(stream), user_(user) {}
  Lease(CUdeviceptr address, Block* block, const Lease& other)
      : Lease(address, other.driver_, block, other.stream_, other.user_) {}

  CUdeviceptr address_;
  const Driver* driver_;
  Block* block_;  // null for a captured block, which is never given back
  CUstream stream_;
  std::uint64_t user_;
};

}  // namespace strobe::runtime
