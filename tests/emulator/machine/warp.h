// SPDX-License-Identifier: Apache-2.0
// 32 threads that run one program: registers, where each lane is, and what it waits for.
#pragma once

#include <array>
#include <climits>
#include <cstring>
#include <vector>

#include "machine/fault.h"
#include "machine/instruction.h"

namespace strobe::emulator {

class Block;

/// Why a warp's turn ended.
enum class Turn : std::uint8_t { used_up, yielded, blocked, ended };

class Warp {
 public:
  Warp(Block& block, int index, LaneMask lanes);

  /// Runs at most so many instructions. Of lanes at different places those at the first are run, until they come to
  /// where others are; after a yield it is the turn of those at the next.
  Turn run(int budget);

  template <typename T>
  const T* in(Place place) const {
    return reinterpret_cast<const T*>(bases_[place < 0 ? 1 : 0] + place);
  }
  template <typename T>
  T* out(Place place) {
    return reinterpret_cast<T*>(const_cast<std::byte*>(bases_[0]) + place);
  }
  LaneMask predicate(Place place) const { return *in<LaneMask>(place); }
  void set_predicate(Place place, LaneMask value, LaneMask lanes) {
    LaneMask& kept = *out<LaneMask>(place);
    kept = (kept & ~lanes) | (value & lanes);
  }
  /// Writes the lanes of the mask.
  template <typename T>
  void store(Place place, const T (&values)[kLanes], LaneMask lanes) {
    T* const kept = out<T>(place);
    if (lanes == kAllLanes) {
      std::memcpy(kept, values, sizeof(values));
    } else {
      for (int lane = 0; lane < kLanes; ++lane) kept[lane] = (lanes >> lane & 1) != 0 ? values[lane] : kept[lane];
    }
  }

  Block& block() const { return *block_; }
  int index() const { return index_; }
  LaneMask alive() const { return alive_; }
  std::vector<std::byte>& local() { return local_; }
  int pc() const { return pc_; }

  // For handlers that return Step::moved.
  void move(LaneMask lanes, int pc);
  void wait(LaneMask lanes) { waiting_ |= lanes; }
  void wake(LaneMask lanes) { waiting_ &= ~lanes; }
  void exit(LaneMask lanes) { alive_ &= ~lanes; }

  /// Where its lanes are, for messages.
  std::string describe() const;

  /// For each lane: in which phase it arrived at the cluster's barrier.
  static constexpr std::uint32_t kNoPhase = UINT32_MAX;
  std::array<std::uint32_t, kLanes> cluster_phase{};

 private:
  bool select(unsigned rotation);
  void release_gathered();
  bool run_one(const Instruction& instruction, Turn& turn);
  bool gather(const Instruction& instruction, LaneMask active);
  [[noreturn]] void fault(const Instruction& instruction, LaneMask active, const char* what) const;

  std::array<const std::byte*, 2> bases_{};
  Block* block_;
  const Program* program_;
  int index_;
  int pc_ = 0;
  unsigned rotation_ = 0;  // how many groups of lanes are passed over
  int others_ = INT_MAX;   // the next place at which other lanes are
  LaneMask mask_ = 0;      // lanes that are run
  LaneMask alive_;
  LaneMask waiting_ = 0;    // at a barrier of the block
  LaneMask gathering_ = 0;  // at an instruction that other lanes have to come to
  std::array<int, kLanes> pcs_{};
  std::vector<std::byte> registers_;
  std::vector<std::byte> local_;
};

/// Calls visit(lane) for each lane of the mask.
template <typename Visit>
void for_lanes(LaneMask lanes, const Visit& visit) {
  for (; lanes != 0; lanes &= lanes - 1) visit(__builtin_ctz(lanes));
}

}  // namespace strobe::emulator
