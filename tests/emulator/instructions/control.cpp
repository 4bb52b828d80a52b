// SPDX-License-Identifier: Apache-2.0
// Branches and ends.
#include <algorithm>

#include "instructions/lanes.h"
#include "machine/grid.h"

namespace strobe::emulator {
namespace {

Step end_lanes(Warp& warp, const Instruction&, LaneMask lanes) {
  const std::uint32_t phase = warp.block().cluster().phase();
  int arrived = 0;
  for_lanes(lanes, [&](int lane) { arrived += warp.cluster_phase[static_cast<std::size_t>(lane)] == phase ? 1 : 0; });
  warp.exit(lanes);
  warp.block().exit(__builtin_popcount(lanes), arrived);
  return Step::moved;
}

Step trap(Warp&, const Instruction&, LaneMask) { throw Fault("a trap"); }

Step pause(Warp&, const Instruction&, LaneMask) { return Step::yield; }

Step branch_by_index(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto& targets = *reinterpret_cast<const std::vector<std::int64_t>*>(instruction.immediate);
  const auto* const index = warp.in<std::uint32_t>(instruction.argument(0));
  for_lanes(lanes, [&](int lane) {
    if (index[lane] >= targets.size()) throw Fault("an index behind the end of its list of targets");
    warp.move(1U << lane, static_cast<int>(targets[index[lane]]));
  });
  return Step::moved;
}

void decode_branch(Decoder& decoder, const Statement& statement) {
  if (statement.operands.size() != 1) decoder.unsupported("an unknown target");
  decoder.emit(nullptr, {}, {}, statement.operands[0].number);
}

void decode_branch_by_index(Decoder& decoder, const Statement& statement) {
  const auto found = decoder.kernel().branch_targets.find(statement.operands[1].name);
  if (found == decoder.kernel().branch_targets.end()) decoder.unsupported("an unknown list of targets");
  Instruction& instruction = decoder.emit(branch_by_index, {}, {decoder.in(statement.operands[0], 32)});
  decoder.add_table(instruction, found->second);
}

void decode_end(Decoder& decoder, const Statement&) { decoder.emit(end_lanes, {}, {}); }

}  // namespace

void add_control(DecodeTable& table) {
  table["bra"] = decode_branch;
  table["brx"] = decode_branch_by_index;
  table["exit"] = decode_end;
  table["ret"] = decode_end;  // kernels call nothing
  table["trap"] = [](Decoder& decoder, const Statement&) { decoder.emit(trap, {}, {}); };
  table["nanosleep"] = [](Decoder& decoder, const Statement&) { decoder.emit(pause, {}, {}); };
  table["brkpt"] = table["pmevent"] = [](Decoder&, const Statement&) {};
}

}  // namespace strobe::emulator
