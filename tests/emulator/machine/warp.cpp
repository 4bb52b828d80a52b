// SPDX-License-Identifier: Apache-2.0
#include "machine/warp.h"

#include <algorithm>

#include "machine/grid.h"

namespace strobe::emulator {
namespace {

void fill(std::byte* place, std::uint32_t value) {
  auto* const lanes = reinterpret_cast<std::uint32_t*>(place);
  std::fill(lanes, lanes + kLanes, value);
}

std::uint32_t special_of_block(Special special, const Block& block) {
  const Shape& shape = block.grid().shape();
  const auto s = static_cast<unsigned>(special);
  const auto axis = [&](Special first) { return s - static_cast<unsigned>(first); };
  const auto within = [&](Special first) { return s >= static_cast<unsigned>(first) && axis(first) < 3; };
  if (within(Special::ntid_x)) return shape.block.at(axis(Special::ntid_x));
  if (within(Special::ctaid_x)) return block.index().at(axis(Special::ctaid_x));
  if (within(Special::nctaid_x)) return shape.grid.at(axis(Special::nctaid_x));
  if (within(Special::clusterid_x)) return block.cluster().index().at(axis(Special::clusterid_x));
  if (within(Special::nclusterid_x)) return block.grid().clusters().at(axis(Special::nclusterid_x));
  if (within(Special::cluster_nctaid_x)) return shape.cluster.at(axis(Special::cluster_nctaid_x));
  if (within(Special::cluster_ctaid_x)) {
    const unsigned i = axis(Special::cluster_ctaid_x);
    return block.index().at(i) % shape.cluster.at(i);
  }
  const unsigned cluster_size = shape.cluster[0] * shape.cluster[1] * shape.cluster[2];
  switch (special) {
    case Special::nwarpid: return static_cast<std::uint32_t>((block.threads() + kLanes - 1) / kLanes);
    case Special::smid: return block.index()[0] % 132;
    case Special::nsmid: return 132;
    case Special::cluster_ctarank: return static_cast<std::uint32_t>(block.rank());
    case Special::cluster_nctarank: return cluster_size;
    case Special::is_explicit_cluster: return cluster_size > 1 ? 1 : 0;
    case Special::dynamic_smem_size: return static_cast<std::uint32_t>(shape.dynamic_shared);
    case Special::total_smem_size: return static_cast<std::uint32_t>(block.grid().shared_bytes() + kSharedBase);
    default: return 0;
  }
}

std::uint32_t special_of_lane(Special special, const Block& block, int warp, std::uint32_t lane, bool& is_of_lane) {
  const Shape& shape = block.grid().shape();
  const std::uint32_t thread = static_cast<std::uint32_t>(warp * kLanes) + lane;
  const std::uint32_t own = 1U << lane;
  is_of_lane = true;
  switch (special) {
    case Special::tid_x: return thread % shape.block[0];
    case Special::tid_y: return thread / shape.block[0] % shape.block[1];
    case Special::tid_z: return thread / shape.block[0] / shape.block[1];
    case Special::laneid: return lane;
    case Special::warpid: return static_cast<std::uint32_t>(warp);
    case Special::lanemask_eq: return own;
    case Special::lanemask_lt: return own - 1;
    case Special::lanemask_le: return own | (own - 1);
    case Special::lanemask_ge: return ~(own - 1);
    case Special::lanemask_gt: return ~(own | (own - 1));
    default: is_of_lane = false; return 0;
  }
}

}  // namespace

Warp::Warp(Block& block, int index, LaneMask lanes)
    : block_(&block), program_(&block.grid().program()), index_(index), alive_(lanes) {
  cluster_phase.fill(kNoPhase);
  registers_.assign(program_->register_bytes + 64, std::byte{0xff});
  const auto address = reinterpret_cast<std::uintptr_t>(registers_.data());
  bases_[0] = registers_.data() + (64 - address % 64) % 64;
  bases_[1] = program_->constants.data() + program_->constants.size();
  local_.assign(static_cast<std::size_t>(program_->local_bytes) * kLanes, std::byte{0xff});
  for (const auto& [special, place] : program_->specials) {
    bool is_of_lane = false;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t value = special_of_lane(special, block, index, lane, is_of_lane);
      out<std::uint32_t>(place)[lane] = value;
    }
    if (!is_of_lane) fill(out<std::byte>(place), special_of_block(special, block));
  }
}

void Warp::move(LaneMask lanes, int pc) {
  for_lanes(lanes, [&](int lane) { pcs_[static_cast<std::size_t>(lane)] = pc; });
}

void Warp::release_gathered() {
  LaneMask at_barriers = 0;
  LaneMask left = gathering_;
  while (left != 0) {
    const int pc = pcs_[static_cast<std::size_t>(__builtin_ctz(left))];
    LaneMask group = 0;
    for_lanes(left, [&](int lane) { group |= pcs_[static_cast<std::size_t>(lane)] == pc ? 1U << lane : 0; });
    left &= ~group;
    const Instruction& instruction = program_->code[static_cast<std::size_t>(pc)];
    LaneMask wanted = alive_;
    if (instruction.gather == Gather::named) wanted &= in<LaneMask>(instruction.members)[__builtin_ctz(group)];
    if (instruction.handler == nullptr) {  // a barrier of the warp, of which there may be several places
      at_barriers |= group;
    } else if ((wanted & ~group) == 0) {
      gathering_ &= ~group;
    }
  }
  for_lanes(at_barriers, [&](int lane) {
    const Instruction& instruction = program_->code[static_cast<std::size_t>(pcs_[static_cast<std::size_t>(lane)])];
    const LaneMask wanted = alive_ & in<LaneMask>(instruction.members)[lane];
    if ((wanted & ~at_barriers) != 0) return;
    gathering_ &= ~(1U << lane);
    ++pcs_[static_cast<std::size_t>(lane)];
  });
}

bool Warp::select(unsigned rotation) {
  if (gathering_ != 0) release_gathered();
  const LaneMask runnable = alive_ & ~waiting_ & ~gathering_;
  mask_ = 0;
  others_ = INT_MAX;
  if (runnable == 0) return false;
  pc_ = -1;
  for (;; --rotation) {
    int next = INT_MAX;
    int first = INT_MAX;
    for_lanes(runnable, [&](int lane) {
      const int pc = pcs_[static_cast<std::size_t>(lane)];
      first = std::min(first, pc);
      if (pc > pc_) next = std::min(next, pc);
    });
    pc_ = next == INT_MAX ? first : next;
    if (rotation == 0) break;
  }
  for_lanes(alive_, [&](int lane) {
    const int pc = pcs_[static_cast<std::size_t>(lane)];
    if (pc == pc_ && (runnable >> lane & 1) != 0)
      mask_ |= 1U << lane;
    else if (pc > pc_)
      others_ = std::min(others_, pc);
  });
  return true;
}

/// Whether all lanes that have to are at the instruction; else these wait for the others.
bool Warp::gather(const Instruction& instruction, LaneMask active) {
  LaneMask wanted = alive_;
  if (instruction.gather == Gather::named) {
    const auto* const members = in<LaneMask>(instruction.members);
    wanted &= members[__builtin_ctz(active)];
    for_lanes(active, [&](int lane) {
      if ((members[lane] >> lane & 1) == 0) throw Fault("a lane that is not in the mask of its own instruction");
    });
  }
  if ((wanted & ~active) == 0) return true;
  gathering_ |= active;
  move(active, pc_);
  move(mask_ & ~active, pc_ + 1);
  mask_ = 0;
  return false;
}

void Warp::fault(const Instruction& instruction, LaneMask active, const char* what) const {
  const auto& index = block_->index();
  throw Fault(text_of("%s\n  at PTX line %d: %.400s\n  in block (%u, %u, %u), warp %d, lanes %08x of %.300s", what,
                      instruction.line, std::string(instruction.text).c_str(), index[0], index[1], index[2], index_,
                      active, program_->name.c_str()));
}

/// One instruction of the lanes of mask_; false where they do not simply go on.
bool Warp::run_one(const Instruction& instruction, Turn& turn) {
  LaneMask active = mask_;
  if (instruction.guard != kNoPlace) {
    const LaneMask guard = predicate(instruction.guard);
    active &= instruction.guard_negated ? ~guard : guard;
    if (active == 0) {
      ++pc_;
      return pc_ < others_;
    }
  }
  try {
    if (instruction.gather != Gather::none && !gather(instruction, active)) return false;
    if (instruction.handler == nullptr) {  // a barrier of the warp whose lanes are all here, or a branch
      if (instruction.gather != Gather::none) {
        ++pc_;
        return pc_ < others_;
      }
      if (active == mask_) {
        const int from = pc_;
        pc_ = static_cast<int>(instruction.immediate);
        return others_ == INT_MAX || (pc_ > from && pc_ < others_);
      }
      move(active, static_cast<int>(instruction.immediate));
      move(mask_ & ~active, pc_ + 1);
      mask_ = 0;
      return false;
    }
    switch (instruction.handler(*this, instruction, active)) {
      case Step::next: ++pc_; return pc_ < others_;
      case Step::yield:
        ++pc_;
        turn = Turn::yielded;
        return false;
      case Step::moved:
        move(mask_ & ~active, pc_ + 1);
        mask_ = 0;
        return false;
      case Step::retry:
        move(active, pc_);
        move(mask_ & ~active, pc_ + 1);
        mask_ = 0;
        turn = Turn::yielded;
        return false;
    }
  } catch (const Fault& problem) {
    fault(instruction, active, problem.what());
  }
  return true;
}

Turn Warp::run(int budget) {
  const Instruction* const code = program_->code.data();
  while (alive_ != 0) {
    if (!select(rotation_)) return Turn::blocked;
    const unsigned rotation = rotation_;
    rotation_ = 0;
    Turn turn = Turn::used_up;
    while (budget > 0) {
      --budget;
      if (!run_one(code[pc_], turn)) break;
    }
    move(mask_, pc_);
    mask_ = 0;
    if (turn == Turn::yielded) {
      rotation_ = (rotation + 1) % 8;
      return turn;
    }
    if (budget == 0) return alive_ == 0 ? Turn::ended : Turn::used_up;
  }
  return Turn::ended;
}

std::string Warp::describe() const {
  std::string text;
  LaneMask left = alive_;
  while (left != 0) {
    const int pc = pcs_[static_cast<std::size_t>(__builtin_ctz(left))];
    LaneMask group = 0;
    for_lanes(left, [&](int lane) { group |= pcs_[static_cast<std::size_t>(lane)] == pc ? 1U << lane : 0; });
    left &= ~group;
    const bool waits = (group & waiting_) != 0;  // behind the instruction at which it waits
    const Instruction& at = program_->code[static_cast<std::size_t>(waits ? pc - 1 : pc)];
    text += text_of("  warp %d, lanes %08x %s line %d: %.160s\n", index_, group,
                    waits                       ? "wait at"
                    : (group & gathering_) != 0 ? "gather at"
                                                : "are at",
                    at.line, std::string(at.text).c_str());
  }
  return text;
}

}  // namespace strobe::emulator
