// SPDX-License-Identifier: Apache-2.0
// Pieces of work that processes share out among themselves: the children that a process forks after it has made this.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

namespace strobe::runtime {

/// The numbers from 0 to count - 1, taken by whichever process is free, and how many are done.
class SharedWork {
 public:
  explicit SharedWork(std::size_t count) : count_(count) {
    void* const memory = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) counters_ = new (memory) Counters;
  }
  ~SharedWork() {
    if (counters_ != nullptr) ::munmap(counters_, sizeof(Counters));
  }
  SharedWork(const SharedWork&) = delete;
  SharedWork& operator=(const SharedWork&) = delete;

  /// False where there is no memory for it.
  bool usable() const { return counters_ != nullptr; }

  /// False where all are taken.
  bool take(std::size_t& index) const {
    index = counters_->taken.fetch_add(1);
    return index < count_;
  }

  void finish_one() const { counters_->done.fetch_add(1); }

  std::size_t done() const { return counters_->done; }

 private:
  struct Counters {
    std::atomic<std::size_t> taken = 0;
    std::atomic<std::size_t> done = 0;
  };
  static_assert(std::atomic<std::size_t>::is_always_lock_free);  // so that processes can share it

  std::size_t count_;
  Counters* counters_ = nullptr;
};

}  // namespace strobe::runtime
