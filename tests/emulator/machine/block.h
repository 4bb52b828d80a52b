// SPDX-License-Identifier: Apache-2.0
// Blocks of threads, with shared memory and named barriers, and their clusters.
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "machine/memory.h"
#include "machine/warp.h"

namespace strobe::emulator {

class Grid;
class Cluster;

inline constexpr int kNamedBarriers = 16;
inline constexpr int kRankShift = 24;  // of the block's rank, plus 1, in an address of the cluster's shared memory

enum class Reduction : std::uint8_t { none, any, all, count };

struct NamedBarrier {
  struct Waiter {
    Warp* warp;
    LaneMask lanes;
    Place result;
    int line;
  };
  int expected = 0;  // threads, 0: all of the block
  int arrived = 0;
  Reduction reduction = Reduction::none;
  bool any = false;
  bool all = true;
  int count = 0;
  std::vector<Waiter> waiters;
};

class Block {
 public:
  Block(Grid& grid, Cluster& cluster, std::array<unsigned, 3> index, int rank);

  /// Lanes that arrive at a barrier, as so many threads, and those of them that wait for it.
  void arrive(int number, int expected, int threads);
  void wait(int number, NamedBarrier::Waiter waiter);
  NamedBarrier& barrier(int number) { return barriers_.at(static_cast<std::size_t>(number)); }
  void complete_if_all(NamedBarrier& at);
  /// `arrived`: how many of them have arrived at the cluster's barrier in this phase.
  void exit(int threads, int arrived);

  /// Bytes of shared memory at an address of its window. Throws where there are none.
  std::byte* shared(std::uint64_t address, std::size_t bytes);

  Grid& grid() const { return *grid_; }
  Cluster& cluster() const { return *cluster_; }
  int rank() const { return rank_; }
  int threads() const { return threads_; }
  int live() const { return live_; }
  std::deque<Warp>& warps() { return warps_; }
  const std::array<unsigned, 3>& index() const { return index_; }

 private:
  Grid* grid_;
  Cluster* cluster_;
  std::array<unsigned, 3> index_;
  int rank_;
  int threads_;
  int live_;
  std::vector<std::byte> shared_;
  std::array<NamedBarrier, kNamedBarriers> barriers_;
  std::deque<Warp> warps_;
};

class Cluster {
 public:
  Cluster(Grid& grid, std::array<unsigned, 3> index);

  std::deque<Block>& blocks() { return blocks_; }
  const std::array<unsigned, 3>& index() const { return index_; }
  /// Shared memory of any of its blocks: addresses below the first rank's are the block's own.
  std::byte* shared(Block& own, std::uint64_t address, std::size_t bytes);
  /// The block whose shared memory an address is in.
  Block& owner(Block& own, std::uint64_t address);
  int live() const;

  /// The barrier of the cluster: threads arrive in its phase and wait until it has passed.
  void arrive(int threads);
  std::uint32_t phase() const { return phase_; }
  void exit(int arrived);

 private:
  void complete_if_all();
  std::array<unsigned, 3> index_;
  std::deque<Block> blocks_;
  std::uint32_t phase_ = 0;
  int arrived_ = 0;
};

}  // namespace strobe::emulator
