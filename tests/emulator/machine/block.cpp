// SPDX-License-Identifier: Apache-2.0
#include "machine/block.h"

#include <algorithm>

#include "machine/grid.h"

namespace strobe::emulator {

Block::Block(Grid& grid, Cluster& cluster, std::array<unsigned, 3> index, int rank)
    : grid_(&grid), cluster_(&cluster), index_(index), rank_(rank) {
  const auto& shape = grid.shape().block;
  threads_ = static_cast<int>(shape[0] * shape[1] * shape[2]);
  live_ = threads_;
  shared_.assign(grid.shared_bytes() + 128, std::byte{0xff});
  for (int warp = 0; warp * kLanes < threads_; ++warp) {
    const int lanes = std::min(kLanes, threads_ - warp * kLanes);
    warps_.emplace_back(*this, warp, lanes == kLanes ? kAllLanes : (1U << lanes) - 1);
  }
}

std::byte* Block::shared(std::uint64_t address, std::size_t bytes) {
  const std::uint64_t offset = address - kSharedBase;
  if (address < kSharedBase || offset + bytes > grid_->shared_bytes()) {
    throw Fault(text_of("%zu bytes at 0x%llx of shared memory, which is 0x%llx to 0x%llx", bytes,
                        static_cast<unsigned long long>(address), static_cast<unsigned long long>(kSharedBase),
                        static_cast<unsigned long long>(kSharedBase) + grid_->shared_bytes()));
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(shared_.data());
  return shared_.data() + (128 - begin % 128) % 128 + offset;
}

void Block::arrive(int number, int expected, int threads) {
  if (number < 0 || number >= kNamedBarriers) throw Fault(text_of("there is no barrier %d", number));
  NamedBarrier& at = barrier(number);
  if (at.arrived > 0 && at.expected != expected) {
    throw Fault(
        text_of("barrier %d is for %d threads here and for %d where others arrived", number, expected, at.expected));
  }
  if (expected % kLanes != 0) throw Fault(text_of("a barrier for %d threads, which are no whole warps", expected));
  at.expected = expected;
  at.arrived += threads;
  if (expected > 0 && at.arrived > expected) {
    throw Fault(text_of("%d threads at barrier %d, which is for %d", at.arrived, number, expected));
  }
  grid_->note_progress();
}

void Block::wait(int number, NamedBarrier::Waiter waiter) {
  barrier(number).waiters.push_back(waiter);
  waiter.warp->wait(waiter.lanes);
}

void Block::complete_if_all(NamedBarrier& at) {
  const int expected = at.expected > 0 ? at.expected : (live_ + kLanes - 1) / kLanes * kLanes;
  if (at.arrived == 0 || at.arrived < expected) return;
  for (const NamedBarrier::Waiter& waiter : at.waiters) {
    waiter.warp->wake(waiter.lanes);
    if (waiter.result == kNoPlace) continue;
    if (at.reduction == Reduction::count) {
      for_lanes(waiter.lanes, [&](int lane) {
        waiter.warp->out<std::uint32_t>(waiter.result)[lane] = static_cast<std::uint32_t>(at.count);
      });
    } else {
      const bool holds = at.reduction == Reduction::any ? at.any : at.all;
      waiter.warp->set_predicate(waiter.result, holds ? kAllLanes : 0, waiter.lanes);
    }
  }
  at = NamedBarrier{};
}

void Block::exit(int threads, int arrived) {
  live_ -= threads;
  grid_->note_progress();
  for (NamedBarrier& at : barriers_) complete_if_all(at);
  cluster_->exit(arrived);
}

Cluster::Cluster(Grid& grid, std::array<unsigned, 3> index) : index_(index) {
  const auto& shape = grid.shape().cluster;
  int rank = 0;
  for (unsigned z = 0; z < shape[2]; ++z) {
    for (unsigned y = 0; y < shape[1]; ++y) {
      for (unsigned x = 0; x < shape[0]; ++x) {
        const std::array<unsigned, 3> block = {index[0] * shape[0] + x, index[1] * shape[1] + y,
                                               index[2] * shape[2] + z};
        blocks_.emplace_back(grid, *this, block, rank++);
      }
    }
  }
}

Block& Cluster::owner(Block& own, std::uint64_t address) {
  const std::uint64_t rank = address >> kRankShift;
  if (rank == 0) return own;
  if (rank > blocks_.size()) {
    throw Fault(
        text_of("0x%llx is no address of the cluster's shared memory", static_cast<unsigned long long>(address)));
  }
  Block& block = blocks_[rank - 1];
  if (block.live() == 0) throw Fault("shared memory of a block of the cluster that has ended");
  return block;
}

std::byte* Cluster::shared(Block& own, std::uint64_t address, std::size_t bytes) {
  return owner(own, address).shared(address & ((std::uint64_t{1} << kRankShift) - 1), bytes);
}

int Cluster::live() const {
  int threads = 0;
  for (const Block& block : blocks_) threads += block.live();
  return threads;
}

void Cluster::arrive(int threads) {
  arrived_ += threads;
  complete_if_all();
}

void Cluster::exit(int arrived) {
  arrived_ -= arrived;
  complete_if_all();
}

void Cluster::complete_if_all() {
  if (arrived_ == 0 || arrived_ < live()) return;
  arrived_ = 0;
  ++phase_;
}

}  // namespace strobe::emulator
