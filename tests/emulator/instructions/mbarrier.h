// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory: 64 bits each, in a layout of our own.
#pragma once

#include <cstdint>
#include <cstring>

#include "machine/grid.h"
#include "ptx/decoder.h"

namespace strobe::emulator {

/// Counts of the phase under way: arrivals that are missing, and bytes that are announced but not there.
class MemoryBarrier {
 public:
  static constexpr std::uint32_t kMostArrivals = (1U << 20) - 1;

  /// The barrier at a place of shared memory. Throws where none was initialised.
  explicit MemoryBarrier(std::byte* at) : at_(at) {
    std::memcpy(&word_, at, sizeof(word_));
    if (expected() == 0 || expected() > kMostArrivals) throw Fault("an mbarrier that was not initialised");
  }
  static void initialize(std::byte* at, std::uint32_t arrivals) {
    if (arrivals == 0 || arrivals > kMostArrivals) throw Fault("an mbarrier for no or too many arrivals");
    const std::uint64_t word = arrivals | static_cast<std::uint64_t>(arrivals) << 21;
    std::memcpy(at, &word, sizeof(word));
  }

  std::uint64_t phase() const { return word_ >> 63; }
  std::uint32_t missing() const { return static_cast<std::uint32_t>(word_) & kCount; }
  std::uint32_t expected() const { return static_cast<std::uint32_t>(word_ >> 21) & kCount; }

  void arrive(std::uint32_t count) {
    if (count > missing()) throw Fault("more arrivals at an mbarrier than it waits for");
    set(phase(), missing() - count, bytes());
    complete();
  }
  void expect_bytes(std::int64_t count) { set(phase(), missing(), bytes() + count); }
  void complete_bytes(std::int64_t count) {
    set(phase(), missing(), bytes() - count);
    complete();
  }
  /// One more arrival is waited for in this phase.
  void add_missing() { set(phase(), missing() + 1, bytes()); }

 private:
  static constexpr std::uint32_t kCount = (1U << 21) - 1;

  std::int64_t bytes() const { return static_cast<std::int64_t>(word_ << 1) >> 43; }
  void complete() {
    if (missing() == 0 && bytes() == 0) set(phase() ^ 1, expected(), 0);
  }
  void set(std::uint64_t phase, std::uint32_t missing, std::int64_t bytes) {
    word_ = phase << 63 | (static_cast<std::uint64_t>(bytes) & kCount) << 42 |
            static_cast<std::uint64_t>(expected()) << 21 | missing;
    std::memcpy(at_, &word_, sizeof(word_));
  }

  std::byte* at_;
  std::uint64_t word_ = 0;
};

/// Of an instruction whose writes complete bytes of a barrier: so many, after what it emitted before.
void emit_complete(Decoder& decoder, const Statement& statement, const SourceOperand& barrier, std::uint32_t bytes);

}  // namespace strobe::emulator
