// SPDX-License-Identifier: Apache-2.0
// A kernel in the form in which it is run: instructions with a handler each, and where their operands lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/source.h"

namespace strobe::emulator {

class Warp;
struct Instruction;

inline constexpr int kLanes = 32;
using LaneMask = std::uint32_t;  // bit l: lane l
inline constexpr LaneMask kAllLanes = 0xffffffffU;

/// A place in bytes: of a register in those of a warp, or of a constant, below zero, in those of the program.
using Place = std::int32_t;
inline constexpr Place kNoPlace = INT32_MIN;

/// What becomes of the lanes that have run an instruction.
enum class Step : std::uint8_t {
  next,   // they go on
  yield,  // they go on, after others had a turn: this one may be part of a loop that waits
  moved,  // the handler has said where
  retry,  // they run the instruction again after others had a turn
};

/// Runs an instruction for the lanes of the mask, of which there is one at least.
using Handler = Step (*)(Warp& warp, const Instruction& instruction, LaneMask lanes);

/// Which lanes have to come to an instruction before it is run.
enum class Gather : std::uint8_t { none, named, all };

struct Instruction {
  Handler handler = nullptr;
  const Place* places = nullptr;  // results, then arguments
  std::int64_t immediate = 0;     // an offset, a target, ...
  std::uint32_t detail = 0;       // whatever else the handler has to know
  Place guard = kNoPlace;
  Place members = kNoPlace;  // the mask of an instruction that gathers named lanes
  std::uint16_t results = 0;
  std::uint16_t arguments = 0;
  bool guard_negated = false;
  Gather gather = Gather::none;
  std::int16_t table = -1;  // of the targets of brx.idx
  int line = 0;
  std::string_view text;

  Place result(int i) const { return places[i]; }
  Place argument(int i) const { return places[results + i]; }
};

/// Special registers that have the same value while a warp runs; kept where other registers are.
enum class Special : std::uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  gridid,
  lanemask_eq,
  lanemask_le,
  lanemask_lt,
  lanemask_ge,
  lanemask_gt,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  cluster_ctarank,
  cluster_nctarank,
  is_explicit_cluster,
  dynamic_smem_size,
  total_smem_size,
  count,
};

struct Program {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Place> places;
  std::vector<std::vector<std::int64_t>> tables;    // of targets
  std::vector<std::byte> constants;                 // their end is the base that places below zero count from
  std::vector<std::pair<Special, Place>> specials;  // those that the kernel reads
  std::size_t register_bytes = 0;                   // of a warp
  std::int64_t param_bytes = 0;
  std::int64_t local_bytes = 0;  // of a thread
  std::int64_t static_shared = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> params;  // offset and size of each
  int max_threads = 1024;
  int min_blocks = 1;
  std::array<unsigned, 3> cluster = {1, 1, 1};
};

}  // namespace strobe::emulator
