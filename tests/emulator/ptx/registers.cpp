// SPDX-License-Identifier: Apache-2.0
// Registers as they are written have a value each; those of a warp would fill megabytes. Here values that are never
// alive at once share a place: liveness over basic blocks, then one interval a register.
#include <algorithm>
#include <climits>
#include <queue>
#include <ranges>

#include "ptx/decoder.h"

namespace strobe::emulator {
namespace {

struct BasicBlock {
  int begin = 0, end = 0;
  std::vector<int> next;
  std::vector<std::uint64_t> read_first, written, alive_in, alive_out;
};

bool is_branch(const Instruction& instruction) {
  return instruction.handler == nullptr && instruction.gather == Gather::none;
}

class Liveness {
 public:
  Liveness(const Program& program, std::size_t registers) : program_(program), words_((registers + 63) / 64) {
    first_.assign(registers, INT_MAX);
    last_.assign(registers, -1);
    find_blocks();
    for (BasicBlock& block : blocks_) summarize(block);
    propagate();
    for (const BasicBlock& block : blocks_) extend(block);
  }
  int first(std::size_t reg) const { return first_[reg]; }
  int last(std::size_t reg) const { return last_[reg]; }

 private:
  using Bits = std::vector<std::uint64_t>;

  void find_blocks() {
    const auto count = static_cast<int>(program_.code.size());
    std::vector<bool> begins(program_.code.size() + 1, false);
    begins[0] = true;
    for (int i = 0; i < count; ++i) {
      for_targets(i, [&](int target) {
        begins[static_cast<std::size_t>(target)] = true;
        begins[static_cast<std::size_t>(i) + 1] = true;
      });
    }
    std::vector<int> block_of(program_.code.size() + 1, 0);
    for (int i = 0; i < count; ++i) {
      if (begins[static_cast<std::size_t>(i)]) blocks_.emplace_back().begin = i;
      blocks_.back().end = i + 1;
      block_of[static_cast<std::size_t>(i)] = static_cast<int>(blocks_.size()) - 1;
    }
    for (BasicBlock& block : blocks_) {
      const Instruction& last = program_.code[static_cast<std::size_t>(block.end) - 1];
      for_targets(block.end - 1, [&](int target) { block.next.push_back(block_of[static_cast<std::size_t>(target)]); });
      const bool always = !block.next.empty() && last.guard == kNoPlace;
      if (!always && block.end < count) block.next.push_back(block_of[static_cast<std::size_t>(block.end)]);
    }
  }

  template <typename Visit>
  void for_targets(int i, const Visit& visit) const {
    const Instruction& instruction = program_.code[static_cast<std::size_t>(i)];
    if (is_branch(instruction)) visit(static_cast<int>(instruction.immediate));
    if (instruction.table >= 0) {
      for (const std::int64_t target : program_.tables[static_cast<std::size_t>(instruction.table)]) {
        visit(static_cast<int>(target));
      }
    }
  }

  static bool test(const Bits& bits, Place reg) {
    return (bits[static_cast<std::size_t>(reg) / 64] >> (reg % 64) & 1) != 0;
  }
  static void set(Bits& bits, Place reg) { bits[static_cast<std::size_t>(reg) / 64] |= std::uint64_t{1} << (reg % 64); }

  template <typename Visit>
  static void for_reads(const Instruction& instruction, const Visit& visit) {
    for (int i = 0; i < instruction.arguments; ++i) {
      if (instruction.argument(i) >= 0) visit(instruction.argument(i));
    }
    if (instruction.guard >= 0) visit(instruction.guard);
    if (instruction.members >= 0) visit(instruction.members);
  }

  void summarize(BasicBlock& block) const {
    for (Bits* bits : {&block.read_first, &block.written, &block.alive_in, &block.alive_out}) bits->assign(words_, 0);
    for (int i = block.begin; i < block.end; ++i) {
      const Instruction& instruction = program_.code[static_cast<std::size_t>(i)];
      for_reads(instruction, [&](Place reg) {
        if (!test(block.written, reg)) set(block.read_first, reg);
      });
      if (instruction.guard != kNoPlace) continue;  // it may leave its results as they are
      for (int r = 0; r < instruction.results; ++r) set(block.written, instruction.result(r));
    }
  }

  void propagate() {
    for (bool changed = true; changed;) {
      changed = false;
      for (BasicBlock& block : std::views::reverse(blocks_)) {
        for (std::size_t w = 0; w < words_; ++w) {
          std::uint64_t out = 0;
          for (const int next : block.next) out |= blocks_[static_cast<std::size_t>(next)].alive_in[w];
          const std::uint64_t in = block.read_first[w] | (out & ~block.written[w]);
          changed |= in != block.alive_in[w];
          block.alive_in[w] = in;
          block.alive_out[w] = out;
        }
      }
    }
  }

  void extend(Place reg, int at) {
    int& first = first_[static_cast<std::size_t>(reg)];
    int& last = last_[static_cast<std::size_t>(reg)];
    first = std::min(first, at);
    last = std::max(last, at);
  }

  void extend(const BasicBlock& block) {
    for (std::size_t w = 0; w < words_; ++w) {
      for (std::uint64_t bits = block.alive_in[w]; bits != 0; bits &= bits - 1) {
        extend(static_cast<Place>(w * 64) + __builtin_ctzll(bits), block.begin);
      }
      for (std::uint64_t bits = block.alive_out[w]; bits != 0; bits &= bits - 1) {
        extend(static_cast<Place>(w * 64) + __builtin_ctzll(bits), block.end);
      }
    }
    for (int i = block.begin; i < block.end; ++i) {
      const Instruction& instruction = program_.code[static_cast<std::size_t>(i)];
      for_reads(instruction, [&](Place reg) { extend(reg, i); });
      for (int r = 0; r < instruction.results; ++r) extend(instruction.result(r), i);
    }
  }

  const Program& program_;
  std::size_t words_;
  std::vector<BasicBlock> blocks_;
  std::vector<int> first_, last_;
};

std::size_t bytes_of(RegisterKind kind) {
  switch (kind) {
    case RegisterKind::predicate: return 4;
    case RegisterKind::bits16: return 64;
    case RegisterKind::bits32: return 128;
    case RegisterKind::bits64: return 256;
    case RegisterKind::bits128: return 512;
  }
  return 0;
}

}  // namespace

std::size_t allocate_registers(const Program& program, const std::vector<RegisterKind>& registers,
                               const std::vector<Place>& always_alive, std::vector<Place>& places) {
  const Liveness liveness(program, registers.size());
  places.assign(registers.size(), 0);
  std::vector<bool> is_fixed(registers.size(), false);
  std::size_t bytes = 0;
  // By size: larger ones first, so that each is aligned.
  for (const RegisterKind kind : {RegisterKind::bits128, RegisterKind::bits64, RegisterKind::bits32,
                                  RegisterKind::bits16, RegisterKind::predicate}) {
    for (const Place reg : always_alive) {
      if (registers[static_cast<std::size_t>(reg)] != kind) continue;
      is_fixed[static_cast<std::size_t>(reg)] = true;
      places[static_cast<std::size_t>(reg)] = static_cast<Place>(bytes);
      bytes += bytes_of(kind);
    }
    std::vector<std::size_t> order;
    for (std::size_t reg = 0; reg < registers.size(); ++reg) {
      if (registers[reg] == kind && !is_fixed[reg] && liveness.last(reg) >= 0) order.push_back(reg);
    }
    std::ranges::sort(order, {}, [&](std::size_t reg) { return liveness.first(reg); });
    std::priority_queue<std::pair<int, Place>, std::vector<std::pair<int, Place>>, std::greater<>>
        busy;  // until, place
    std::vector<Place> free;
    for (const std::size_t reg : order) {
      while (!busy.empty() && busy.top().first < liveness.first(reg)) {
        free.push_back(busy.top().second);
        busy.pop();
      }
      if (free.empty()) {
        free.push_back(static_cast<Place>(bytes));
        bytes += bytes_of(kind);
      }
      places[reg] = free.back();
      free.pop_back();
      busy.emplace(liveness.last(reg), places[reg]);
    }
  }
  return bytes;
}

}  // namespace strobe::emulator
