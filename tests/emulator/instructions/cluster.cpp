// SPDX-License-Identifier: Apache-2.0
// Clusters of blocks: their barrier and addresses, and what a block says to the next kernel.
#include "instructions/bulk.h"
#include "instructions/lanes.h"
#include "machine/grid.h"

namespace strobe::emulator {
namespace {

Step arrive(Warp& warp, const Instruction&, LaneMask lanes) {
  Cluster& cluster = warp.block().cluster();
  for_lanes(lanes, [&](int lane) { warp.cluster_phase[static_cast<std::size_t>(lane)] = cluster.phase(); });
  cluster.arrive(__builtin_popcount(lanes));
  warp.block().grid().note_progress();
  return Step::next;
}

Step wait(Warp& warp, const Instruction&, LaneMask lanes) {
  const std::uint32_t now = warp.block().cluster().phase();
  bool passed = true;
  for_lanes(lanes, [&](int lane) { passed &= warp.cluster_phase[static_cast<std::size_t>(lane)] != now; });
  return passed ? Step::next : Step::retry;
}

/// Arguments: an address of the block's own shared memory, and a rank.
template <typename T>
Step map_address(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const T* const own = warp.in<T>(instruction.argument(0));
  const auto* const ranks = warp.in<std::uint32_t>(instruction.argument(1));
  const std::size_t count = warp.block().cluster().blocks().size();
  T values[kLanes] = {};
  for_lanes(lanes, [&](int lane) {
    if (ranks[lane] >= count) throw Fault(text_of("rank %u of a cluster of %zu blocks", ranks[lane], count));
    const T window = sizeof(T) == 8 ? static_cast<T>(kSharedWindow) : T{0};
    const T offset = own[lane] & ((T{1} << kRankShift) - 1);
    values[lane] = window | static_cast<T>(ranks[lane] + 1) << kRankShift | offset;
  });
  warp.store(instruction.result(0), values, lanes);
  return Step::next;
}

void decode_map(Decoder& decoder, const Statement& statement) {
  const int bits = type_bits(statement.opcode.back());
  const bool is_shared = statement.has("shared::cluster");
  if ((bits == 64) == is_shared) decoder.unsupported("an address of another size");
  const Place own = decoder.in(statement.operands[1], bits);
  const Place rank = decoder.in(statement.operands[2], 32);
  decoder.emit(bits == 64 ? map_address<std::uint64_t> : map_address<std::uint32_t>,
               {decoder.out(statement.operands[0], bits)}, {own, rank});
}

void decode_nothing(Decoder&, const Statement&) {}

}  // namespace

void decode_cluster_barrier(Decoder& decoder, const Statement& statement) {
  Instruction& instruction = decoder.emit(statement.has("arrive") ? arrive : wait, {}, {});
  if (statement.has("aligned")) instruction.gather = Gather::all;
}

void add_cluster(DecodeTable& table) {
  table["mapa"] = decode_map;
  table["griddepcontrol"] = decode_nothing;  // kernels are run one after the other
  table["setmaxnreg"] = decode_nothing;
}

}  // namespace strobe::emulator
