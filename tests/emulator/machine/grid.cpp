// SPDX-License-Identifier: Apache-2.0
#include "machine/grid.h"

#include <algorithm>
#include <cstdlib>

namespace strobe::emulator {
namespace {

constexpr std::size_t kParamAlignment = 128;
constexpr int kHopelessRounds = 300;  // turns of all warps in which nothing happens

int number_from(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

const Options& Options::get() {
  static const Options options = [] {
    Options read;
    read.seed = static_cast<unsigned>(number_from("STROBE_EMULATOR_SEED", 0));
    read.resident = number_from("STROBE_EMULATOR_RESIDENT", read.resident);
    read.turn = number_from("STROBE_EMULATOR_TURN", read.seed == 0 ? read.turn : 200);
    read.traces = number_from("STROBE_EMULATOR_TRACE", 0) != 0;
    read.idle = number_from("STROBE_EMULATOR_IDLE", 0) != 0;
    return read;
  }();
  return options;
}

Grid::Grid(const Program& program, const Shape& shape, const std::vector<std::byte>& params)
    : program_(program), shape_(shape), storage_(params.size() + kParamAlignment), random_(Options::get().seed) {
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  params_ = storage_.data() + (kParamAlignment - address % kParamAlignment) % kParamAlignment;
  std::ranges::copy(params, params_);
  GlobalMemory::instance().add(reinterpret_cast<std::uint64_t>(params_), params.size());
}

Grid::~Grid() { GlobalMemory::instance().remove(reinterpret_cast<std::uint64_t>(params_)); }

std::array<unsigned, 3> Grid::clusters() const {
  std::array<unsigned, 3> count{};
  for (std::size_t axis = 0; axis < 3; ++axis) count[axis] = shape_.grid[axis] / shape_.cluster[axis];
  return count;
}

/// Clusters take the places of those that have ended; false once none is left.
bool Grid::refill() {
  std::erase_if(resident_, [](const auto& cluster) { return cluster->live() == 0; });
  const std::array<unsigned, 3> count = clusters();
  const std::uint64_t all = std::uint64_t{count[0]} * count[1] * count[2];
  const std::size_t cluster_size = std::size_t{shape_.cluster[0]} * shape_.cluster[1] * shape_.cluster[2];
  const std::size_t most = std::max<std::size_t>(1, static_cast<std::size_t>(Options::get().resident) / cluster_size);
  while (next_cluster_ < all && resident_.size() < most) {
    const auto c = static_cast<unsigned>(next_cluster_++);
    const std::array<unsigned, 3> index = {c % count[0], c / count[0] % count[1], c / count[0] / count[1]};
    resident_.push_back(std::make_unique<Cluster>(*this, index));
  }
  return !resident_.empty();
}

/// A turn of each warp; whether one used it up or something happened that another may wait for.
bool Grid::run_turns() {
  const Options& options = Options::get();
  const std::uint64_t before = progress_;
  bool busy = false;
  std::vector<Warp*> warps;
  for (const auto& cluster : resident_) {
    for (Block& block : cluster->blocks()) {
      for (Warp& warp : block.warps()) {
        if (warp.alive() != 0) warps.push_back(&warp);
      }
    }
  }
  if (options.seed != 0) std::shuffle(warps.begin(), warps.end(), random_);
  for (Warp* const warp : warps) {
    const int turn =
        options.seed == 0 ? options.turn : 1 + static_cast<int>(random_() % static_cast<unsigned>(options.turn));
    busy |= warp->run(turn) == Turn::used_up;
    clock_ += 1000;
  }
  return busy || progress_ != before;
}

void Grid::run() {
  int idle = 0;
  while (refill()) {
    idle = run_turns() ? 0 : idle + 1;
    if (idle > kHopelessRounds) report_deadlock();
  }
}

void Grid::report_deadlock() {
  std::string text = "all warps wait for something that does not happen, in " + program_.name + "\n";
  for (const auto& cluster : resident_) {
    for (Block& block : cluster->blocks()) {
      const auto& index = block.index();
      text += text_of(" block (%u, %u, %u)\n", index[0], index[1], index[2]);
      for (const Warp& warp : block.warps()) text += warp.describe();
    }
  }
  throw Fault(text);
}

}  // namespace strobe::emulator
