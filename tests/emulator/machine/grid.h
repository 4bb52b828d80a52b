// SPDX-License-Identifier: Apache-2.0
// One launch of a kernel: some of its clusters are resident, whose warps take turns.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <random>

#include "machine/block.h"

namespace strobe::emulator {

struct Shape {
  std::array<unsigned, 3> grid = {1, 1, 1};
  std::array<unsigned, 3> block = {1, 1, 1};
  std::array<unsigned, 3> cluster = {1, 1, 1};
  std::size_t dynamic_shared = 0;
};

/// How kernels are run; read from the environment once.
struct Options {
  unsigned seed = 0;    // STROBE_EMULATOR_SEED: warps take turns in this random order; 0: one after the other
  int resident = 4;     // STROBE_EMULATOR_RESIDENT: blocks that are run at once
  int turn = 4000;      // instructions of a warp's turn
  bool traces = false;  // STROBE_EMULATOR_TRACE: says which kernels are launched
  bool idle = false;    // STROBE_EMULATOR_IDLE: loads machine code, and runs nothing
  static const Options& get();
};

class Grid {
 public:
  Grid(const Program& program, const Shape& shape, const std::vector<std::byte>& params);
  ~Grid();
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  /// Runs all blocks. Throws Fault.
  void run();

  const Program& program() const { return program_; }
  const Shape& shape() const { return shape_; }
  std::byte* params() { return params_; }
  std::size_t shared_bytes() const { return static_cast<std::size_t>(program_.static_shared) + shape_.dynamic_shared; }
  std::array<unsigned, 3> clusters() const;

  /// Something happened that others may wait for.
  void note_progress() { ++progress_; }
  /// Rises with what is run.
  std::uint64_t clock() const { return clock_; }

  /// The global allocation that was found last, in which the next address most often lies.
  Allocation recent;

 private:
  bool run_turns();
  bool refill();
  [[noreturn]] void report_deadlock();

  const Program& program_;
  Shape shape_;
  std::vector<std::byte> storage_;
  std::byte* params_ = nullptr;  // aligned, in the storage
  std::deque<std::unique_ptr<Cluster>> resident_;
  std::uint64_t next_cluster_ = 0;
  std::uint64_t progress_ = 0;
  std::uint64_t clock_ = 0;
  std::mt19937 random_;
};

}  // namespace strobe::emulator
